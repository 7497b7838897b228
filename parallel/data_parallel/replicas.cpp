#include "parallel/data_parallel/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "engine/io/section_sums.h"
#include "parallel/comm/agreement.h"

namespace sluice {
namespace {

std::uint32_t checksum(const Tensor& tensor) {
  constexpr std::int64_t piece = std::int64_t{1} << 20;
  std::uint32_t sum = 0;
  std::vector<std::byte> bytes;
  for (std::int64_t first = 0; first < tensor.size(); first += piece) {
    const Tensor part = tensor.slice(first, {std::min(piece, tensor.size() - first)});
    bytes.resize(part.bytes());
    part.copy_bytes_to(bytes);
    sum = crc32_of(bytes, sum);
  }
  return sum;
}

/// Compares the slots for which counts(slot) is true, the same slots on all ranks.
template <class Counts>
void require_equal_slots(const ParameterSpace& space, Communicator& control,
                         const std::vector<int>& numbers, std::string_view when, Counts&& counts) {
  if (control.size() == 1) return;
  std::vector<std::uint32_t> mine;
  std::vector<std::string> names;
  for (const auto& slot : space.slots()) {
    if (!counts(slot)) continue;
    mine.push_back(checksum(space.working().kept(slot.offset, {slot.size})));
    names.push_back(slot.name);
  }
  if (all_equal(control, std::as_bytes(std::span(mine)), "replicas")) return;
  const auto all = control.gather_values(std::span<const std::uint32_t>(mine), "replicas");
  for (std::size_t slot = 0; slot < mine.size(); ++slot) {
    std::vector<std::uint32_t> sums;
    for (int rank = 0; rank < control.size(); ++rank)
      sums.push_back(all[static_cast<std::size_t>(rank) * mine.size() + slot]);
    const auto usual = *std::ranges::max_element(
        sums, {}, [&](std::uint32_t sum) { return std::ranges::count(sums, sum); });
    std::vector<int> odd;
    for (std::size_t rank = 0; rank < sums.size(); ++rank)
      if (sums[rank] != usual) odd.push_back(numbers[rank]);
    if (!odd.empty())
      fail(fmt::format(
          "the weights of rank {} differ from the other ranks' {}, in {} first; what was saved "
          "before that is good",
          fmt::join(odd, ", "), when, names[slot]));
  }
}

}  // namespace

void require_equal_weights(const ParameterSpace& space, Communicator& control,
                           const std::vector<int>& numbers, std::string_view when) {
  require_equal_slots(space, control, numbers, when, [](const auto&) { return true; });
}

void require_equal_replicated(const ParameterSpace& space, Communicator& shards,
                              const std::vector<int>& numbers, std::string_view when) {
  require_equal_slots(space, shards, numbers, when,
                      [](const auto& slot) { return !slot.shard.divided(); });
}

void require_equal_copies(const ParameterSpace& space, const std::string& name, int shard,
                          Communicator& control, std::string_view when) {
  struct Copy {
    std::int32_t rank = -1, shard = 0;
    std::uint32_t sum = 0;
  };
  const auto* slot = space.find(name);
  Copy mine;
  if (slot != nullptr)
    mine = {control.rank(), shard, checksum(space.working().kept(slot->offset, {slot->size}))};
  auto copies = control.gather_values(mine, "copies");
  std::erase_if(copies, [](const Copy& copy) { return copy.rank < 0; });
  for (const Copy& copy : copies) {
    const Copy& first = *std::ranges::find(copies, copy.shard, &Copy::shard);
    if (copy.sum != first.sum)
      fail(
          fmt::format("rank {} has another copy of {} than rank {} {}; what was saved before that "
                      "is good",
                      copy.rank, name, first.rank, when));
  }
}

}  // namespace sluice
