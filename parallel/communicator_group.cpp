#include "parallel/communicator_group.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/run.h"
#include "kernels/elementwise.h"

namespace sluice {
namespace {

/// What an all_reduce on host memory wants beside the data.
std::int64_t scratch_bytes(const Tensor& data, int ranks) {
  const auto parts = even_parts(data.size(), ranks);
  const std::int64_t largest = std::ranges::max(parts, {}, &Part::count).count;
  return largest * (ranks - 1) * static_cast<std::int64_t>(size_of(data.dtype()));
}

}  // namespace

std::function<void()> CommunicatorGroup::add_up(const Tensor& partial, std::string_view what) {
  CallOptions call{.label = what, .stream = partial.stream()};
  Tensor scratch;
  if (scratch_) {
    const MemoryScope scope(*partial.device(), MemoryUse::staging);
    scratch = Tensor::empty(partial.device(), {scratch_bytes(partial, size())}, DType::u8);
    call.scratch = scratch.view();
  }
  std::size_t span = 0;
  if (timeline_ != nullptr)
    span = timeline_->begin("reduce", Timeline::Lane::network, partial.stream());
  const Handle handle = ranks_.all_reduce(partial.view(), call);
  return [this, handle, partial, scratch, span] {
    {
      const Recorded waiting(timeline_, "wait", Timeline::Lane::compute, partial.stream());
      handle->wait();
    }
    if (timeline_ != nullptr) timeline_->end(span);
  };
}

Tensor CommunicatorGroup::gather(const Tensor& mine, std::span<const std::int64_t> counts,
                                 std::string_view what) {
  std::vector<Part> parts;
  std::int64_t sum = 0;
  for (const std::int64_t count : counts)
    parts.push_back({std::exchange(sum, sum + count), count});
  const Tensor all = Tensor::empty(mine.device(), {sum}, mine.dtype());
  const Part& here = parts[static_cast<std::size_t>(rank())];
  check(here.count == mine.size(), "a rank gives another number of elements than was agreed");
  run(Cast{.out = all.slice(here.offset, {here.count}).view(), .in = mine.view({here.count})},
      mine.stream());
  const Recorded waiting(timeline_, "wait", Timeline::Lane::compute, mine.stream());
  ranks_.all_gather(all.view(), parts, {.label = what, .stream = mine.stream()})->wait();
  return all;
}

}  // namespace sluice
