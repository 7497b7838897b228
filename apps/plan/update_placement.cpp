#include "apps/plan/update_placement.h"

#include <algorithm>

#include "apps/plan/memory_flags.h"

namespace sluice {
namespace {

/// Returns the fewest blocks, up to `most`, that give the shortest step; 0 if they save less than
/// one percent of it. Assumes that the time first falls and then rises with the number of blocks.
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

UpdatePlacement::UpdatePlacement(const TrainConfig& options, const RunSetup& setup,
                                 const DeviceProfile& profile, const Budgets& budgets)
    : options_(options),
      setup_(setup),
      profile_(profile),
      layers_(setup.config.n_layer),
      host_room_(budgets.host_allowed - std::min(budgets.host_allowed, budgets.host_reserve)),
      speculative_(options.memory.speculative_blocks) {}

StepTime UpdatePlacement::time_of(const MemoryChoice& choice, const StateMemory& state) const {
  const MemoryBytes need =
      state.bytes_for(choice.resident_blocks + choice.host_blocks, 0, 0, layers_);
  // The host memory of a run with all state on the device is the copy of a checkpoint
  // (--async-save).
  const bool in_file = need.file > 0;
  const auto away = static_cast<double>(in_file ? need.file : need.host - state.all.host);
  const std::int64_t blocks_away = std::max<std::int64_t>(1, layers_ - choice.resident_blocks);
  const double by_cpu =
      away * static_cast<double>(choice.cpu_blocks) / static_cast<double>(blocks_away);
  // On a CPU, state that comes from a file is updated like all other state.
  const double visiting = profile_.gpu ? 0 : away;
  const double width = static_cast<double>(size_of(setup_.precision.dtype));
  const auto parameters =
      static_cast<double>(parameters_of_shard(setup_.config, options_.parallel.tp));
  // need.device has the weights, gradients, state and the ring's buffers.
  const double trained = trained_parameters(setup_.config, options_.parallel.tp);
  const double gradients = state.gradients > 0 ? static_cast<double>(state.gradients)
                                               : trained * choice.gradient_bytes();
  const double resident =
      visiting + std::max(0.0, static_cast<double>(need.device) - parameters * width - gradients);
  return predict_step(setup_.config, choice,
                      {.batch = options_.batch_share(),
                       .seq_len = setup_.trainer.seq_len,
                       .dtype = setup_.precision.dtype,
                       .resident_state = resident,
                       .streamed_state = away - by_cpu - visiting,
                       .cpu_state = by_cpu,
                       .file_state = in_file ? away : 0,
                       .share = options_.parallel.zero > 0
                                    ? 1.0 / static_cast<double>(options_.parallel.dp.value_or(1))
                                    : 1,
                       .shards = shards_of(options_.planning, options_.parallel, profile_),
                       .dropout = setup_.trainer.drops_attention(),
                       .orthogonalizes = options_.optimizer.kind == OptimizerKind::muon},
                      profile_);
}

std::int64_t UpdatePlacement::by_cpu(const MemoryChoice& choice, std::int64_t asked) const {
  if (options_.memory.state_home.empty() || !profile_.gpu) return asked;
  return layers_ - choice.resident_blocks - choice.host_blocks;
}

bool UpdatePlacement::uses_cpu() const {
  return can_stream(options_, profile_) && options_.memory.state_home.empty() &&
         options_.memory.cpu_blocks.value_or(can_share_cpu(options_, setup_, profile_) ? 1 : 0) > 0;
}

std::int64_t UpdatePlacement::cpu_blocks(MemoryChoice choice, const MemoryBytes& transient,
                                         const StateMemory& state) const {
  if (options_.memory.cpu_blocks || !uses_cpu()) return options_.memory.cpu_blocks.value_or(0);
  const auto seconds = [&](std::int64_t blocks) {
    choice.cpu_blocks = blocks;
    choice.speculative_blocks = speculative_blocks(choice, transient, state);
    return time_of(choice, state).total();
  };
  const std::int64_t away = layers_ - choice.resident_blocks;
  return fewest(away - std::min(speculative_.value_or(0), away), seconds);
}

/// Returns the most speculative blocks that the flag and the host memory allow.
std::int64_t UpdatePlacement::max_speculative(const MemoryChoice& choice,
                                              const MemoryBytes& transient,
                                              const StateMemory& state) const {
  const std::int64_t visiting = choice.streamed_blocks();
  if (speculative_) return std::min(*speculative_, visiting);
  const std::size_t taken =
      state.bytes_for(choice.resident_blocks, choice.cpu_blocks, 0, layers_).host + transient.host;
  if (state.backup == 0 || taken >= host_room_) return 0;
  return std::min(visiting, static_cast<std::int64_t>((host_room_ - taken) / state.backup));
}

std::int64_t UpdatePlacement::speculative_blocks(MemoryChoice choice, const MemoryBytes& transient,
                                                 const StateMemory& state) const {
  const std::int64_t most = max_speculative(choice, transient, state);
  if (speculative_) return most;
  return fewest(most, [&](std::int64_t blocks) {
    choice.speculative_blocks = blocks;
    return time_of(choice, state).total();
  });
}

}  // namespace sluice
