#include "parallel/data_parallel/gradient_reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"

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
  if (space.options().shard_gradients) {
    for (const auto& bucket : bucket_plan.buckets())
      for (const std::size_t slot : bucket.slots)
        check(space.slots()[slot].section == space.slots()[bucket.slots.front()].section,
              "sharded gradients need buckets by section");
    places_.resize(GradientBuffers::places);
    summed_.assign(2 * bucket_plan.buckets().size(), false);
    started_.assign(bucket_plan.buckets().size(), false);
    for (std::size_t slot = 0; slot < space.slots().size(); ++slot)
      if (space.gradients().place_of(space.slots()[slot].section))
        set_gradient_begin_hook(*space.slots()[slot].tensor, [this, slot] { begin(slot); });
  }
  if (!options.scratch) return;
  std::int64_t bytes = 0;
  for (const auto& bucket : bucket_plan.buckets())
    for (const auto& gradients : bucket.gradients) {
      const auto parts = space.options().zero()
                             ? gradients.parts
                             : even_parts(gradients.end - gradients.begin, ranks.size());
      bytes = std::max(bytes, scratch_bytes(parts, space.gradients().dtype(gradients.narrow)));
    }
  const MemoryScope scope(*space.device(), MemoryUse::staging);
  for (std::size_t lane = 0; lane < lanes; ++lane)
    scratch_.push_back(Tensor::empty(space.device(), {bytes}, DType::u8));
}

GradientReducer::~GradientReducer() {
  if (ranks_.size() == 1) return;
  for (const auto& slot : space_.slots()) {
    set_gradient_begin_hook(*slot.tensor, {});
    set_gradient_ready_hook(*slot.tensor, {});
  }
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

/// Makes the place of the slot's section free for its gradients.
void GradientReducer::begin(std::size_t slot) {
  const auto& slots = space_.slots();
  const int section = slots[slot].section;
  Place& place = places_[*space_.gradients().place_of(section)];
  if (place.open && place.section == section) return;
  for (Place& other : places_)
    close(other);
  {
    const auto is_over = [](const Reduction& one) { return one.handle->done(); };
    const bool there = std::ranges::all_of(place.reductions, is_over);
    const Recorded span(there ? nullptr : timeline_, "wait", Timeline::Lane::compute,
                        space_.working().stream());
    for (Place& other : places_)
      if (&other == &place || !options_.overlap) add_to_sums(other);
  }
  note_finished();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].section != section) continue;
    for (const std::size_t bucket : buckets_of_slot_[i])
      started_[bucket] = false;
    const std::int64_t end = slots[i].gradient_offset + slots[i].padded_size;
    const std::int64_t gap = slots[i].padded_size - slots[i].size;
    if (gap > 0 && place.section != section)
      space_.gradients().written(slots[i].narrow, end - gap, end).fill_zero();
  }
  place.section = section;
  place.open = true;
}

/// Starts to reduce what backward has written of a section.
void GradientReducer::close(Place& place) {
  if (!std::exchange(place.open, false)) return;
  const auto& slots = space_.slots();
  const auto is_written = [&](std::size_t slot) { return has_gradient(*slots[slot].tensor); };
  for (std::size_t bucket = 0; bucket < bucket_plan_.buckets().size(); ++bucket) {
    const auto& of_bucket = bucket_plan_.buckets()[bucket].slots;
    if (slots[of_bucket.front()].section != place.section || started_[bucket] ||
        std::ranges::none_of(of_bucket, is_written))
      continue;
    start(bucket);
  }
  for (const auto& slot : slots)
    if (slot.section == place.section) forget_gradient(*slot.tensor);
}

/// Adds a section's reduced gradients to the sums that this rank keeps.
void GradientReducer::add_to_sums(Place& place) {
  for (const auto& [bucket, narrow, handle] : place.reductions) {
    handle->join();
    const auto& all = bucket_plan_.buckets()[bucket].gradients;
    const auto& gradients = *std::ranges::find(all, narrow, &BucketPlan::Gradients::narrow);
    const Part& part = gradients.parts[static_cast<std::size_t>(ranks_.rank())];
    if (part.count == 0) continue;
    const std::int64_t begin = gradients.begin + part.offset, end = begin + part.count;
    const View from = space_.gradients().written(narrow, begin, end).view();
    const View sum = space_.gradients().kept(narrow, begin, end).view();
    const std::size_t number = 2 * bucket + (narrow ? 1 : 0);
    const Stream stream = space_.working().stream();
    if (summed_[number])
      run(Add{.out = sum, .a = sum, .b = from}, stream);
    else
      run(Cast{.out = sum, .in = from}, stream);
    summed_[number] = true;
  }
  place.reductions.clear();
}

void GradientReducer::ready(std::size_t slot) {
  if (!options_.overlap) return;
  if (!expected_.empty() && expected_[slot])
    for (const std::size_t bucket : buckets_of_slot_[slot])
      if (--slots_left_[bucket] == 0) start(bucket);
  if (under_way_.empty()) return;
  ranks_.progress();
  note_finished();
}

void GradientReducer::start(std::size_t index) {
  started_[index] = true;
  Place* const place = place_of(index);
  // Backward may have passed a part of the section's parameters, as zero-bubble schedules do.
  if (place != nullptr)
    for (const std::size_t slot : bucket_plan_.buckets()[index].slots)
      zero_unused_gradient(*space_.slots()[slot].tensor);
  for (const auto& gradients : bucket_plan_.buckets()[index].gradients) {
    const Tensor data =
        space_.gradients().staying(gradients.narrow, gradients.begin, gradients.end);
    if (data.size() == 0) continue;
    const Handle sums = reduce(data.view(), fmt::format("gradients {}", index),
                               space_.options().zero() ? &gradients.parts : nullptr);
    if (place != nullptr) place->reductions.push_back({index, gradients.narrow, sums});
  }
}

/// Starts to sum `data` over the ranks. `parts`: each rank receives its part alone; null: all.
Handle GradientReducer::reduce(const View& data, const std::string& label,
                               const std::vector<Part>* parts) {
  const Stream stream = space_.working().stream();
  CallOptions call{.label = label, .stream = stream, .scratch = options_.padded};
  if (!scratch_.empty()) {
    // The last operation that used the same scratch memory must be over.
    if (under_way_.size() >= scratch_.size())
      under_way_[under_way_.size() - scratch_.size()].handle->wait();
    call.scratch = scratch_[reductions_ % scratch_.size()].view();
  }
  ++reductions_;
  UnderWay one;
  if (timeline_ != nullptr) one.span = timeline_->begin("reduce", Timeline::Lane::network, stream);
  one.handle =
      parts != nullptr ? ranks_.reduce_scatter(data, *parts, call) : ranks_.all_reduce(data, call);
  under_way_.push_back(one);
  return one.handle;
}

void GradientReducer::start_resting(int section) {
  const FlatBuffer::Visitor* const gradients = space_.gradients().visitor(section);
  if (ranks_.size() == 1 || gradients == nullptr) return;
  // Messages are made for the gradients of a bucket.
  std::size_t most = 1;
  for (const auto& bucket : bucket_plan_.buckets())
    for (const auto& [narrow, begin, end, parts] : bucket.gradients)
      most = std::max(
          most, static_cast<std::size_t>(end - begin) * size_of(space_.gradients().dtype(narrow)));
  const Tensor& all = gradients->visiting;
  const auto piece =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(most / size_of(all.dtype())));
  const std::string label = fmt::format("gradients of section {}", section);
  for (std::int64_t first = 0; first < all.size(); first += piece)
    resting_.push_back(
        reduce(all.slice(first, {std::min(piece, all.size() - first)}).view(), label, nullptr));
}

void GradientReducer::join_resting() {
  if (resting_.empty()) return;
  const auto is_over = [](const Handle& one) { return one->done(); };
  const bool there = std::ranges::all_of(resting_, is_over);
  const Recorded span(there ? nullptr : timeline_, "wait", Timeline::Lane::compute,
                      space_.working().stream());
  for (const Handle& one : resting_)
    one->join();
  resting_.clear();
  note_finished();
}

/// Records which operations are over, and drops those before which all are.
void GradientReducer::note_finished() {
  for (UnderWay& one : under_way_) {
    if (one.recorded || !one.handle->over()) continue;
    one.recorded = true;
    if (timeline_ != nullptr) timeline_->end(one.span);
  }
  while (!under_way_.empty() && under_way_.front().recorded)
    under_way_.pop_front();
}

void GradientReducer::finish() {
  space_.zero_unused_gradients();
  if (ranks_.size() == 1) return;
  check(!expected_.empty(), "gradients were to be reduced that nobody had expected");
  const Recorded span(timeline_, "wait", Timeline::Lane::compute, space_.working().stream());
  for (Place& place : places_)
    close(place);
  for (std::size_t bucket = 0; bucket < started_.size(); ++bucket)
    if (!started_[bucket] && place_of(bucket) == nullptr) start(bucket);
  for (Place& place : places_)
    add_to_sums(place);
  while (!under_way_.empty()) {
    under_way_.front().handle->wait();
    note_finished();
  }
  if (!places_.empty()) zero_sums_without_gradient();
  reductions_ = 0;
  expected_.clear();
}

/// Returns the place in which a bucket's gradients are written; null: they have their own memory.
GradientReducer::Place* GradientReducer::place_of(std::size_t bucket) {
  const std::size_t slot = bucket_plan_.buckets()[bucket].slots.front();
  const auto place = space_.gradients().place_of(space_.slots()[slot].section);
  return place ? &places_[*place] : nullptr;
}

/// Zeroes the sums of buckets that backward has not reached in this step.
void GradientReducer::zero_sums_without_gradient() {
  for (std::size_t bucket = 0; bucket < started_.size(); ++bucket) {
    if (place_of(bucket) == nullptr) continue;
    for (const auto& [narrow, begin, end, parts] : bucket_plan_.buckets()[bucket].gradients) {
      const Part& part = parts[static_cast<std::size_t>(ranks_.rank())];
      if (part.count == 0 || summed_[2 * bucket + (narrow ? 1 : 0)]) continue;
      const std::int64_t first = begin + part.offset;
      space_.gradients().kept(narrow, first, first + part.count).fill_zero();
    }
  }
  summed_.assign(summed_.size(), false);
}

}  // namespace sluice
