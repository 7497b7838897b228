#include "apps/train/cost_model.h"

#include <algorithm>

namespace sluice {
namespace {

/// The share of the device's rate that matrix products of this many rows reach: a device of s
/// multiprocessors is half busy at 4 s rows. Fitted to the wave counts of 128 x 128 tiles.
double fill(double rows, const DeviceProfile& profile) {
  return rows / (rows + 4.0 * profile.multiprocessors);
}

}  // namespace

StepTime predict_step(const GPT2Config& config, const MemoryChoice& choice, const StepWork& work,
                      const DeviceProfile& profile) {
  const bool wide = work.dtype == DType::f32 || work.dtype == DType::f64;
  // A probe measures the precision of its run; the other is guessed.
  const double guess = wide ? profile.narrow_flops / 4 : profile.wide_flops;
  const double measured = wide ? profile.wide_flops : profile.narrow_flops;
  const double flops = measured > 0 ? measured : guess;
  const auto width = static_cast<double>(size_of(work.dtype));
  const auto embedding = static_cast<double>(config.n_embd);
  const auto rows = static_cast<double>(choice.micro_batch * work.seq_len);
  const double micro_batches =
      static_cast<double>(work.batch) / static_cast<double>(choice.micro_batch);
  const double tokens = rows * micro_batches;

  StepTime time;
  const double rate = flops * fill(rows, profile);
  const double forward_flops = config.flops_per_token(work.seq_len) / 3;
  time.forward = tokens * forward_flops / rate;
  time.backward = 2 * time.forward;
  // Sums of gradients are read and written for every micro-batch but the first.
  const double sums =
      static_cast<double>(config.parameter_count()) * (choice.narrow_gradients ? 4 : 8);
  time.backward += (micro_batches - 1) * sums / profile.memory_rate;

  const double head = 2 * static_cast<double>(config.vocab_size) * embedding;
  const double layer_flops = (forward_flops - head) / static_cast<double>(config.n_layer);
  // A pass that reads and writes one number per channel; GELU works on four times the width.
  const double pass = tokens * 2 * embedding * width / profile.memory_rate;
  for (const Recompute mode : choice.recompute) {
    if (mode == Recompute::block) time.recompute += tokens * layer_flops / rate;
    if (mode == Recompute::gelu || mode == Recompute::gelu_ln) time.recompute += 4 * pass;
    if (mode == Recompute::gelu_ln) time.recompute += 2 * pass;
  }

  const double gradient_and_weight = (choice.narrow_gradients ? 2 : 4) + 2 * width;
  time.update = (2 * work.resident_state +
                 static_cast<double>(config.parameter_count()) * gradient_and_weight) /
                profile.memory_rate;
  time.bytes_each_way = static_cast<std::uint64_t>(work.streamed_state);
  if (work.streamed_state > 0) {
    const double streaming =
        work.streamed_state / std::min(profile.to_device_rate, profile.to_host_rate);
    time.stall = std::max(0.0, streaming - time.forward / micro_batches);
  }
  return time;
}

}  // namespace sluice
