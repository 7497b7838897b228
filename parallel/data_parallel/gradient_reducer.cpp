#include "parallel/data_parallel/gradient_reducer.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/autograd.h"

namespace sluice {
namespace {

/// How many reductions may be under way at once on the host. More would let ranks drift further
/// apart but take more scratch memory.
constexpr std::size_t lanes = 4;

}  // namespace

GradientReducer::GradientReducer(ParameterSpace& space, const BucketPlan& bucket_plan,
                                 Communicator& ranks, const Options& options)
    : space_(space),
      bucket_plan_(bucket_plan),
      ranks_(ranks),
      options_(options),
      buckets_of_slot_(space.slots().size()) {
  if (ranks.size() == 1) return;
  for (std::size_t bucket = 0; bucket < bucket_plan.buckets().size(); ++bucket)
    for (const std::size_t slot : bucket_plan.buckets()[bucket].slots)
      buckets_of_slot_[slot].push_back(bucket);
  for (std::size_t slot = 0; slot < space.slots().size(); ++slot)
    set_gradient_ready_hook(*space.slots()[slot].tensor, [this, slot] { ready(slot); });
  if (!options.scratch) return;
  std::int64_t bytes = 0;
  for (const auto& bucket : bucket_plan.buckets())
    for (const auto& gradients : bucket.gradients) {
      const auto parts = space.options().zero()
                             ? gradients.parts
                             : even_parts(gradients.end - gradients.begin, ranks.size());
      bytes = std::max(bytes, scratch_bytes(parts, space.gradients(gradients.narrow).dtype()));
    }
  const MemoryScope scope(*space.device(), MemoryUse::staging);
  for (std::size_t lane = 0; lane < lanes; ++lane)
    scratch_.push_back(Tensor::empty(space.device(), {bytes}, DType::u8));
}

GradientReducer::~GradientReducer() {
  if (ranks_.size() == 1) return;
  for (const auto& slot : space_.slots())
    set_gradient_ready_hook(*slot.tensor, {});
}

void GradientReducer::expect(const SpaceRange& range) {
  if (ranks_.size() == 1) return;
  const auto& slots = space_.slots();
  if (expected_.empty()) {
    slots_left_.clear();
    for (const auto& bucket : bucket_plan_.buckets())
      slots_left_.push_back(bucket.slots.size());
    started_.assign(slots_left_.size(), false);
    expected_.assign(slots.size(), false);
  }
  for (std::size_t slot = 0; slot < slots.size(); ++slot)
    if (slots[slot].offset >= range.begin && slots[slot].offset < range.end) expected_[slot] = true;
}

void GradientReducer::ready(std::size_t slot) {
  if (expected_.empty() || !expected_[slot] || !options_.overlap) return;
  for (const std::size_t bucket : buckets_of_slot_[slot])
    if (--slots_left_[bucket] == 0) start(bucket);
  ranks_.progress();
  note_finished();
}

void GradientReducer::start(std::size_t index) {
  started_[index] = true;
  for (const auto& gradients : bucket_plan_.buckets()[index].gradients) {
    const Tensor data = space_.gradients(gradients.narrow)
                            .slice(gradients.begin, {gradients.end - gradients.begin});
    const std::string label = fmt::format("gradients {}", index);
    CallOptions call{.label = label, .stream = data.stream(), .scratch = options_.padded};
    if (!scratch_.empty()) {
      // The last operation that used the same scratch memory must be over.
      if (under_way_.size() >= scratch_.size())
        under_way_[under_way_.size() - scratch_.size()].handle->wait();
      call.scratch = scratch_[under_way_.size() % scratch_.size()].view();
    }
    UnderWay one;
    if (timeline_ != nullptr)
      one.span = timeline_->begin("reduce", Timeline::Lane::network, data.stream());
    one.handle = space_.options().zero() ? ranks_.reduce_scatter(data.view(), gradients.parts, call)
                                         : ranks_.all_reduce(data.view(), call);
    under_way_.push_back(std::move(one));
  }
}

void GradientReducer::note_finished() {
  if (timeline_ == nullptr) return;
  for (UnderWay& one : under_way_) {
    if (one.recorded || !one.handle->over()) continue;
    one.recorded = true;
    timeline_->end(one.span);
  }
}

void GradientReducer::finish() {
  space_.zero_unused_gradients();
  if (ranks_.size() == 1) return;
  check(!expected_.empty(), "gradients were to be reduced that nobody had expected");
  const Recorded span(timeline_, "wait", Timeline::Lane::compute, space_.working().stream());
  for (std::size_t bucket = 0; bucket < started_.size(); ++bucket)
    if (!started_[bucket]) start(bucket);
  for (const UnderWay& one : under_way_) {
    one.handle->wait();
    note_finished();
  }
  under_way_.clear();
  expected_.clear();
}

}  // namespace sluice
