#include "kernels/base/pinned_ranges.h"
#include "tests/support/catch.h"

#include <array>
#include <utility>
#include <vector>

namespace sluice::test::pinned_ranges_test {

TEST_CASE("a copy is cut where it enters or leaves a pinned range") {
  const std::array<std::byte, 100> memory{};
  const std::byte* const at = memory.data();
  PinnedRanges ranges;
  using Pieces = std::vector<std::pair<std::size_t, std::size_t>>;
  const auto pieces_of = [&](std::size_t first, std::size_t bytes) {
    Pieces pieces;
    ranges.for_each_piece(at + first, bytes, [&](std::size_t offset, std::size_t count) {
      pieces.emplace_back(first + offset, count);
    });
    return pieces;
  };
  CHECK(pieces_of(0, 100) == Pieces{{0, 100}});
  CHECK(pieces_of(3, 0).empty());
  ranges.add(at + 20, 10);
  ranges.add(at + 30, 20);
  ranges.add(at + 60, 5);
  CHECK(pieces_of(0, 100) == Pieces{{0, 20}, {20, 10}, {30, 20}, {50, 10}, {60, 5}, {65, 35}});
  CHECK(pieces_of(20, 10) == Pieces{{20, 10}});
  CHECK(pieces_of(29, 2) == Pieces{{29, 1}, {30, 1}});
  CHECK(pieces_of(65, 35) == Pieces{{65, 35}});
  CHECK_FALSE(ranges.contains(at + 19));
  CHECK(ranges.contains(at + 20));
  CHECK(ranges.contains(at + 49));
  CHECK_FALSE(ranges.contains(at + 50));
  ranges.remove(at + 30);
  CHECK(pieces_of(25, 30) == Pieces{{25, 5}, {30, 25}});
}

}  // namespace sluice::test::pinned_ranges_test
