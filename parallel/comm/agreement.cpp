#include "parallel/comm/agreement.h"

#include <fmt/format.h>

#include <bit>

#include "engine/io/section_sums.h"
#include "engine/process_state.h"
#include "kernels/base/error.h"

namespace sluice {

std::vector<std::int32_t> largest_of_each(Communicator& ranks, std::vector<std::int32_t> mine,
                                          std::string_view label) {
  ranks
      .all_reduce({reinterpret_cast<std::byte*>(mine.data()),
                   DType::i32,
                   {static_cast<std::int64_t>(mine.size())}},
                  {.label = label, .op = ReduceOp::maximum, .any_order = true})
      ->wait();
  return mine;
}

bool any_rank(Communicator& ranks, bool here, std::string_view label) {
  return largest_of_each(ranks, {here ? 1 : 0}, label).front() == 1;
}

std::optional<int> first_rank(Communicator& ranks, bool here, std::string_view label) {
  const int lowest =
      ranks.size() - largest_of_each(ranks, {here ? ranks.size() - ranks.rank() : 0}, label)[0];
  return lowest < ranks.size() ? std::optional(lowest) : std::nullopt;
}

bool all_equal(Communicator& ranks, std::span<const std::byte> mine, std::string_view label) {
  const auto sum = std::bit_cast<std::int32_t>(crc32_of(mine));
  const auto size = static_cast<std::int32_t>(mine.size());
  // The largest complement is that of the smallest number.
  const std::vector<std::int32_t> numbers{sum, size, ~sum, ~size};
  return largest_of_each(ranks, numbers, label) == numbers;
}

std::string place_of(const Communicator& ranks) {
  return fmt::format("rank {} on {}", ranks.rank(), this_process().host);
}

void refuse_together(Communicator& ranks, const std::string& sentence, std::string_view label) {
  const auto first = first_rank(ranks, !sentence.empty(), label);
  if (first) fail(ranks.share_text(sentence, *first, label), ErrorKind::usage);
}

void require_equal(Communicator& ranks, const std::vector<Fact>& facts) {
  if (ranks.size() == 1) return;
  std::string all;
  for (const Fact& fact : facts)
    all += fmt::format("{} {}\n", fact.mine.size(), fact.mine);
  if (all_equal(ranks, std::as_bytes(std::span(all)), facts.front().what)) return;
  const std::string first = ranks.share_text(place_of(ranks), 0, "hosts");
  for (const auto& [what, mine, advice] : facts) {
    const std::string theirs = ranks.share_text(mine, 0, what);
    refuse_together(
        ranks,
        mine == theirs ? ""
                       : fmt::format("{} has another {} than {}: {} and {}{}{}", place_of(ranks),
                                     what, first, mine, theirs, advice.empty() ? "" : "; ", advice),
        what);
  }
}

void require_equal(Communicator& ranks, std::string_view what, const std::string& mine) {
  require_equal(ranks, {{.what = std::string(what), .mine = mine}});
}

}  // namespace sluice
