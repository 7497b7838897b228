#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sluice {

/// Maps ranges of positions to places in a buffer.
class ElementMap {
 public:
  /// Maps [begin, end), which follows all ranges added before, to [at, at + end - begin).
  void add(std::int64_t begin, std::int64_t end, std::int64_t at);
  /// The same, as one piece with what was added before if both lie next to each other.
  void append(std::int64_t begin, std::int64_t end, std::int64_t at);
  /// Returns where [begin, end) begins; none unless it is in one piece.
  std::optional<std::int64_t> find(std::int64_t begin, std::int64_t end) const;

  struct Places {
    std::int64_t begin = 0, end = 0;
  };
  /// Returns the places of those positions of [begin, end) that are in the map. They must lie next
  /// to each other; empty if there are none.
  Places places(std::int64_t begin, std::int64_t end) const;

 private:
  struct Piece {
    std::int64_t begin, end, at;
  };
  std::vector<Piece> pieces_;  ///< ascending
};

}  // namespace sluice
