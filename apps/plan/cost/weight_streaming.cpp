#include "apps/plan/cost/weight_streaming.h"

#include <algorithm>
#include <cmath>

namespace sluice {

namespace {

/// Updates of a table whose weights and gradients are on the device: bytes, and seconds.
struct TableUpdate {
  TableUpdate(double elements, const MemoryChoice& choice, const StepWork& work, double host_rate,
              const DeviceProfile& profile) {
    const auto width = static_cast<double>(size_of(work.dtype));
    const bool splits = splits_master(choice.layout, work.dtype);
    const double master = width > 2 ? 0 : splits ? 2 : 4;
    state = elements * (work.table_moments + master);
    down = elements * (4 + (width > 2 || splits ? width : 0));
    up = elements * width;
    seconds = std::max((2 * state + down + up) / host_rate, down / profile.to_host_rate);
  }

  double state, down, up, seconds;
};

}  // namespace

WeightStreaming predict_weight_streaming(const DecoderConfig& config, const MemoryChoice& choice,
                                         const StepWork& work, const StashedInputs& inputs,
                                         const DeviceProfile& profile, const BlockSum& summing) {
  WeightStreaming step;
  const auto blocks = static_cast<double>(choice.count(Residency::host));
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
  const double rate = profile.host_rate > 0 ? profile.host_rate : slow;
  const auto table = [&](std::int64_t elements) {
    const auto here = static_cast<double>(elements) / static_cast<double>(work.shards.ranks);
    return TableUpdate(choice.placement.offload_embeddings ? here : 0, choice, work, rate, profile);
  };
  const TableUpdate embeddings = table(config.embedding_parameters());
  const TableUpdate head = table(config.tied ? 0 : config.vocab_size * config.n_embd);
  const double of_blocks = work.cpu_state - embeddings.state - head.state;
  const double by_cpu = (2 * of_blocks / blocks + gradients + 2 * weights) / rate;
  const double update = std::max(by_cpu, work.file_state / blocks / disk_rate);

  step.to_device =
      std::max(blocks, 2 * blocks - 2) * weights + inputs.resting + embeddings.up + head.up;
  step.to_host = blocks * gradients + inputs.resting + embeddings.down + head.down;
  step.update = blocks * update + embeddings.seconds + head.seconds;
  const double up = weights / profile.to_device_rate;
  const auto exposed = [](double copies, double computing) {
    return std::max(0.0, copies - computing);
  };
  step.stall = embeddings.seconds + exposed(head.seconds, forward) + update + up +
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
