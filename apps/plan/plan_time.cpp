#include "apps/plan/plan_time.h"

#include <algorithm>

namespace sluice {

StepTime time_of(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile,
                 const MemoryChoice& choice, const StateMemory& state) {
  const std::int64_t resident = choice.count(Residency::device);
  const MemoryBytes need =
      state.bytes_for(resident + choice.count(Residency::host), 0, choice.layers());
  // The host memory of a run with all state on the device is the copy of a checkpoint
  // (--save background).
  const bool in_file = need.file > 0;
  const auto away = static_cast<double>(in_file ? need.file : need.host - state.all.host);
  const std::int64_t blocks_away = std::max<std::int64_t>(1, choice.layers() - resident);
  const double by_cpu =
      away * static_cast<double>(choice.count(Residency::cpu)) / static_cast<double>(blocks_away);
  // On a CPU, state that comes from a file is updated like all other state.
  const double staged = profile.gpu ? 0 : away;
  const double width = static_cast<double>(size_of(setup.precision.dtype));
  const auto parameters =
      static_cast<double>(parameters_of_shard(setup.config, options.parallel.tp));
  // need.device has the weights, gradients, state and the ring's buffers.
  const double trained = trained_parameters(setup.config, options.parallel.tp);
  const double gradients = state.gradients > 0 ? static_cast<double>(state.gradients)
                                               : trained * choice.gradient_bytes();
  const double on_device =
      staged + std::max(0.0, static_cast<double>(need.device) - parameters * width - gradients);
  return predict_step(setup.config, choice,
                      {.batch = options.batch_share(),
                       .seq_len = setup.trainer.seq_len,
                       .dtype = setup.precision.dtype,
                       .resident_state = on_device,
                       .streamed_state = away - by_cpu - staged,
                       .cpu_state = by_cpu,
                       .file_state = in_file ? away : 0,
                       .share = options.parallel.zero > 0
                                    ? 1.0 / static_cast<double>(options.parallel.dp.value_or(1))
                                    : 1,
                       .shards = shards_of(options.planning, options.parallel, profile),
                       .dropout = setup.trainer.drops_attention(),
                       .orthogonalizes = options.optimizer.kind == OptimizerKind::muon},
                      profile);
}

}  // namespace sluice
