#include "parallel/data_parallel/zero_optimizer.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

ZeroOptimizer::ZeroOptimizer(ParameterSpace& space, Optimizer& optimizer,
                             const BucketPlan& bucket_plan, Communicator& ranks, ModelNorm* norm,
                             const View& padded)
    : space_(space),
      optimizer_(optimizer),
      bucket_plan_(bucket_plan),
      ranks_(ranks),
      norm_(norm),
      padded_(padded) {
  if (space.options().zero()) owned_ = bucket_plan.owned(ranks.rank());
}

void ZeroOptimizer::set_timeline(Timeline* timeline) {
  timeline_ = timeline;
  optimizer_.set_timeline(timeline);
}

const Tensor& ZeroOptimizer::clip_gradients(double limit, double loss_scale) {
  if (norm_ != nullptr) return norm_->clip_gradients(contributed(), limit, loss_scale);
  if (!space_.options().zero()) return space_.clip_gradients(limit, loss_scale);
  // One rank has the sum of squares of each block and the others have zero, so adding up is exact.
  const Tensor& partials = space_.sum_squares(owned_);
  ranks_
      .all_reduce(partials.view(),
                  {.label = "gradient norm", .stream = partials.stream(), .any_order = true})
      ->join();
  return space_.clip_factor(partials, limit, loss_scale);
}

/// The ranges that this rank contributes to the norm of the whole model.
std::vector<SpaceRange> ZeroOptimizer::contributed() const {
  if (space_.options().zero()) return owned_;
  if (ranks_.rank() > 0) return {};
  return {{0, space_.size()}};
}

const BucketPlan::Bucket& ZeroOptimizer::bucket(std::size_t from_the_beginning) const {
  return bucket_plan_.buckets()[bucket_plan_.buckets().size() - 1 - from_the_beginning];
}

void ZeroOptimizer::step(double rate, const Tensor& gradient_scale) {
  finish();
  optimizer_.step(rate, gradient_scale);
  if (!space_.options().zero()) return;
  pending_ = true;
  gathers_.clear();
  waited_ = 0;
  // If state is offloaded, weights are gathered as they are updated. All ranks must agree on that,
  // also those whose own parts happen to rest on the device.
  const auto offloaded = [](const auto& slot) { return slot.residency != Residency::device; };
  if (std::ranges::any_of(space_.slots(), offloaded)) return;
  while (gathers_.size() < bucket_plan_.buckets().size())
    start_gather();
}

void ZeroOptimizer::start_gather() {
  const std::size_t index = gathers_.size();
  const auto& [range, parts, gradients, slots] = bucket(index);
  const Tensor weights = space_.working().slice(range.begin, {range.end - range.begin});
  gathers_.push_back(ranks_.all_gather(
      weights.view(), parts,
      {.label = fmt::format("weights {}", index), .stream = weights.stream(), .scratch = padded_}));
}

void ZeroOptimizer::update_through(std::int64_t end) {
  if (!space_.options().zero()) return optimizer_.update_through(end);
  // A gather that was joined is over for the watchdog only when somebody looks.
  if (!gathers_.empty() && !gathers_.back()->over()) ranks_.progress();
  const std::size_t buckets = bucket_plan_.buckets().size();
  while (pending_ && waited_ < buckets && bucket(waited_).space.begin < end) {
    if (gathers_.size() == waited_) {
      optimizer_.update_through(bucket(waited_).space.end);
      start_gather();
    }
    const bool there = gathers_[waited_]->done();
    const Recorded span(there ? nullptr : timeline_, "wait", Timeline::Lane::compute,
                        space_.working().stream());
    gathers_[waited_++]->join();
  }
  if (waited_ < buckets) return;
  pending_ = false;
  optimizer_.finish();
}

void ZeroOptimizer::synchronize() {
  finish();
  optimizer_.synchronize();
}

std::vector<std::vector<SpaceRange>> ZeroOptimizer::kept_by_rank() const {
  std::vector<std::vector<SpaceRange>> kept;
  for (int rank = 0; space_.options().zero() && rank < ranks_.size(); ++rank)
    kept.push_back(bucket_plan_.owned(rank));
  return kept;
}

}  // namespace sluice
