#include "apps/plan/cost/stage_times.h"

#include <algorithm>
#include <set>
#include <utility>

namespace sluice {

std::vector<StageTime> stage_times(const DecoderConfig& config, const StagePlaces& places,
                                   const MemoryChoice& choice, const StepWork& work,
                                   const DeviceProfile& profile, const Interconnect& interconnect) {
  const std::int64_t shards = work.shards.ranks;
  const auto message = static_cast<double>(choice.micro_batch * work.seq_len * config.n_embd) *
                       static_cast<double>(size_of(work.dtype));
  std::vector<StageTime> times;
  for (std::size_t i = 0; i < places.parts.size(); ++i) {
    const PartTime part = predict_part(config, places.parts[i], choice, work, profile);
    StageTime time{
        .costs = {.forward = part.forward, .backward = part.backward, .weights = part.weights},
        .tensor = part.forward_tensor + part.backward_tensor};
    const bool last = i + 1 == places.parts.size();
    if (places.stash == Stash::input) {
      time.costs.backward += part.forward;
      if (last)
        time.costs.forward = 0;  // computed once, with backward
      else
        time.tensor += part.forward_tensor;
    }
    // `send` stands for both directions: the slower of the two.
    const int rank = places.rank_of_stage[i];
    for (const std::size_t neighbour : {i - 1, i + 1})
      if (neighbour < places.parts.size() && places.rank_of_stage[neighbour] != rank)
        time.costs.send =
            std::max(time.costs.send,
                     interconnect.between(rank * shards, places.rank_of_stage[neighbour] * shards)
                         .seconds(message));
    times.push_back(time);
  }
  return times;
}

double makespan(ScheduleName name, int ranks, int virtual_stages, std::int64_t micro_batches,
                const std::vector<StageCosts>& costs) {
  const auto of = [&](std::int64_t count) {
    return simulate(make_schedule(name, ranks, virtual_stages, static_cast<int>(count)), costs)
        .makespan;
  };
  // After `some` micro-batches all ranks are in steady state. The last group may be smaller.
  const std::int64_t some = 8 * ranks + micro_batches % ranks;
  const std::int64_t more = some + ranks;
  if (micro_batches <= more) return of(micro_batches);
  const double seconds = of(more);
  return seconds + (seconds - of(some)) * static_cast<double>((micro_batches - more) / ranks);
}

std::int64_t reductions_of(ScheduleName schedule, int ranks, std::int64_t blocks,
                           std::int64_t micro_batches) {
  if (schedule == ScheduleName::zero_bubble_h1) return 2 * micro_batches;
  if (schedule == ScheduleName::interleaved && blocks == 1)
    return (micro_batches + ranks - 1) / ranks;
  return micro_batches;
}

std::int64_t reductions_of(const std::vector<Action>& actions,
                           const std::vector<DecoderPart>& parts) {
  std::int64_t reductions = 0, last = -1;
  std::set<std::int64_t> blocks;
  for (const Action& action : actions) {
    if (!action.computes() || action.kind == Action::Kind::forward) continue;
    const DecoderPart& part = parts[static_cast<std::size_t>(action.stage)];
    for (std::int64_t block = part.last - 1; block >= part.first; --block) {
      blocks.insert(block);
      if (std::exchange(last, block) != block) ++reductions;
    }
  }
  const auto count = std::max<std::int64_t>(1, std::ssize(blocks));
  return (reductions + count - 1) / count;
}

}  // namespace sluice
