#include "parallel/comm/communicator_group.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/run.h"
#include "kernels/elementwise.h"

namespace sluice {
namespace {

Tensor copy_of(const Tensor& tensor) {
  Tensor copy = Tensor::empty_like(tensor);
  run(Cast{.out = copy.view(), .in = tensor.view()}, copy.stream());
  return copy;
}

}  // namespace

std::function<Tensor()> CommunicatorGroup::all_reduce(const Tensor& partial, const Shape& tokens,
                                                      std::string_view what) {
  const bool divided = !tokens.empty();
  check(!divided || partial.size() % size() == 0, "ranks divide a stream into equal stretches");
  const auto parts =
      divided ? equal_parts(partial.size() / size(), size()) : even_parts(partial.size(), size());
  CallOptions call{.label = what, .stream = partial.stream()};
  Tensor scratch;
  if (scratch_) {
    const MemoryScope scope(*partial.device(), MemoryUse::staging);
    scratch = Tensor::empty(partial.device(), {scratch_bytes(parts, partial.dtype())}, DType::u8);
    call.scratch = scratch.view();
  }
  // The host does not wait for a sum of NCCL, so its clock cannot time one.
  Timeline* const timeline = ranks_.one_at_a_time() ? nullptr : timeline_;
  std::size_t span = 0;
  if (timeline != nullptr)
    span = timeline->begin("reduce", Timeline::Lane::network, partial.stream());
  const Handle handle = divided ? ranks_.reduce_scatter(partial.view(), parts, call)
                                : ranks_.all_reduce(partial.view(), call);
  const Part mine = divided ? parts[static_cast<std::size_t>(rank())] : Part{};
  return [this, handle, partial, scratch, timeline, span, mine] {
    {
      const Recorded waiting(timeline_, "wait", Timeline::Lane::compute, partial.stream());
      handle->join();
    }
    if (timeline != nullptr) timeline->end(span);
    if (mine.count == 0) return partial;
    const std::int64_t width = partial.dim(-1);
    return copy_of(partial.slice(mine.offset, {mine.count / width, width}));
  };
}

Tensor CommunicatorGroup::all_gather(const Tensor& stream, const Shape& tokens,
                                     std::string_view what) {
  if (tokens.empty()) return stream;
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), stream.size());
  return gather(stream, counts, what).reshape({tokens[0], tokens[1], stream.dim(-1)});
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
  ranks_.all_gather(all.view(), parts, {.label = what, .stream = mine.stream()})->join();
  return all;
}

void CommunicatorGroup::sum(const View& data, const DevicePtr& device, bool any_order,
                            std::string_view what) {
  CallOptions call{.label = what, .stream = device->stream(), .any_order = any_order};
  Tensor scratch;
  if (scratch_ && !any_order) {
    const MemoryScope scope(*device, MemoryUse::staging);
    const auto parts = even_parts(data.size(), size());
    scratch = Tensor::empty(device, {scratch_bytes(parts, data.dtype)}, DType::u8);
    call.scratch = scratch.view();
  }
  const Recorded waiting(timeline_, "wait", Timeline::Lane::compute, device->stream());
  ranks_.all_reduce(data, call)->join();
}

}  // namespace sluice
