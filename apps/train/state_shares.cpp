#include "apps/train/state_shares.h"

#include <algorithm>

#include "apps/train/memory_wishes.h"

namespace sluice {
namespace {

/// The fewest blocks, up to `most`, with which a step is shortest; none where that saves less than
/// a hundredth of it, which is not worth the trouble. It gets shorter, then longer.
template <class Seconds>
std::int64_t fewest(std::int64_t most, Seconds&& seconds) {
  constexpr double a_little = 0.99;
  std::int64_t least = 0;
  while (least < most) {
    const std::int64_t middle = (least + most) / 2;
    if (seconds(middle) <= seconds(middle + 1))
      most = middle;
    else
      least = middle + 1;
  }
  return least > 0 && seconds(least) < a_little * seconds(0) ? least : 0;
}

}  // namespace

StateShares::StateShares(const TrainOptions& options, const RunSetup& setup,
                         const DeviceProfile& profile, const Budgets& budgets)
    : o_(options),
      setup_(setup),
      profile_(profile),
      layers_(setup.config.n_layer),
      host_room_(budgets.host_allowed - std::min(budgets.host_allowed, budgets.host_reserve)),
      speculative_(sluice::speculative_blocks(options)) {}

StepTime StateShares::time_of(const MemoryChoice& choice, const StateNeed& state) const {
  const Need need = state.with(choice.resident_blocks, 0, 0, layers_);
  // What is there besides is a copy of a checkpoint.
  const auto away = static_cast<double>(need.host - state.all.host);
  const std::int64_t blocks_away = std::max<std::int64_t>(1, layers_ - choice.resident_blocks);
  const double by_cpu =
      away * static_cast<double>(choice.cpu_blocks) / static_cast<double>(blocks_away);
  const double width = static_cast<double>(size_of(setup_.precision.dtype));
  const auto parameters = static_cast<double>(parameters_of_shard(setup_.config, o_.tp));
  // What the device holds for good is weights, gradients, state and the places of the ring.
  const double gradients = parameters * (choice.narrow_gradients ? 2 : 4);
  const double resident =
      std::max(0.0, static_cast<double>(need.device) - parameters * width - gradients);
  return predict_step(setup_.config, choice,
                      {.batch = share_of(o_),
                       .seq_len = setup_.trainer.seq_len,
                       .dtype = setup_.precision.dtype,
                       .resident_state = resident,
                       .streamed_state = away - by_cpu,
                       .cpu_state = by_cpu,
                       .share = o_.zero == 1 ? 1.0 / static_cast<double>(o_.dp.value_or(1)) : 1,
                       .shards = shards_of(o_, profile_)},
                      profile_);
}

bool StateShares::uses_cpu() const {
  return can_stream(o_, profile_) &&
         o_.cpu_blocks.value_or(can_share_cpu(o_, setup_, profile_) ? 1 : 0) > 0;
}

std::int64_t StateShares::cpu_blocks(MemoryChoice choice, const Need& passing,
                                     const StateNeed& state) const {
  if (o_.cpu_blocks || !uses_cpu()) return o_.cpu_blocks.value_or(0);
  const auto seconds = [&](std::int64_t blocks) {
    choice.cpu_blocks = blocks;
    choice.speculative_blocks = speculative_blocks(choice, passing, state);
    return time_of(choice, state).total();
  };
  const std::int64_t away = layers_ - choice.resident_blocks;
  return fewest(away - std::min(speculative_.value_or(0), away), seconds);
}

/// As far as the flag and the host's memory allow.
std::int64_t StateShares::most_speculative(const MemoryChoice& choice, const Need& passing,
                                           const StateNeed& state) const {
  const std::int64_t visiting = choice.visiting_blocks();
  if (speculative_) return std::min(*speculative_, visiting);
  const std::size_t taken =
      state.with(choice.resident_blocks, choice.cpu_blocks, 0, layers_).host + passing.host;
  if (state.second == 0 || taken >= host_room_) return 0;
  return std::min(visiting, static_cast<std::int64_t>((host_room_ - taken) / state.second));
}

std::int64_t StateShares::speculative_blocks(MemoryChoice choice, const Need& passing,
                                             const StateNeed& state) const {
  const std::int64_t most = most_speculative(choice, passing, state);
  if (speculative_) return most;
  return fewest(most, [&](std::int64_t blocks) {
    choice.speculative_blocks = blocks;
    return time_of(choice, state).total();
  });
}

}  // namespace sluice
