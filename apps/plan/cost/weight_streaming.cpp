#include "apps/plan/cost/weight_streaming.h"

#include <algorithm>
#include <cmath>

namespace sluice {

WeightStreaming predict_weight_streaming(const DecoderConfig& config, const MemoryChoice& choice,
                                         const StepWork& work, const StashedInputs& inputs,
                                         const DeviceProfile& profile, const BlockSum& summing) {
  WeightStreaming step;
  const auto blocks = static_cast<double>(choice.host_blocks);
  if (blocks == 0) return step;
  const double micro_batches =
      static_cast<double>(work.batch) / static_cast<double>(choice.micro_batch);
  const auto width = static_cast<double>(size_of(work.dtype));
  const double matrices =
      static_cast<double>(config.block_matrices()) / static_cast<double>(work.shards.ranks);
  const double weights = matrices * width, gradients = matrices * choice.gradient_bytes();
  // A block in the middle, which stands for all.
  const PartTime part = predict_part(config, {0, 1}, choice, work, profile);
  const double forward = micro_batches * part.forward;
  const double backward = micro_batches * part.backward + (inputs.kept > 0 ? forward : 0);
  const double input = inputs.resting / static_cast<double>(config.n_layer);  // of a block
  // Bytes per second of the slowest hosts, used if the rate is unknown.
  constexpr double slow = 2e10;
  const double by_cpu = (2 * work.cpu_state / blocks + gradients + 2 * weights) /
                        (profile.host_rate > 0 ? profile.host_rate : slow);
  const double update = std::max(by_cpu, work.file_state / blocks / disk_rate);

  step.to_device = std::max(blocks, 2 * blocks - 2) * weights + inputs.resting;
  step.to_host = blocks * gradients + inputs.resting;
  step.update = blocks * update;
  const double up = weights / profile.to_device_rate;
  const auto exposed = [](double copies, double computing) {
    return std::max(0.0, copies - computing);
  };
  step.stall = update + up +
               (blocks - 1) * std::max(exposed(update + up, forward),
                                       exposed(input / profile.to_host_rate, forward));
  // The first half of a block's backward passes hides the sums of the block before, and the other
  // half their copies. Nothing hides those of the lowest block.
  const double half = summing.seconds > 0 && summing.overlap
                          ? backward * std::floor(micro_batches / 2) / micro_batches
                          : 0;
  const double back = gradients / profile.to_host_rate;
  step.stall +=
      (blocks - 1) * std::max(exposed((weights + input) / profile.to_device_rate, backward),
                              exposed(summing.seconds, half) + exposed(back, backward - half));
  step.stall += summing.seconds + back;
  return step;
}

}  // namespace sluice
