#include "apps/train/cost_model.h"

#include <algorithm>

namespace sluice {
namespace {

/// The share of the device's rate that matrix products of this many rows reach: a device of s
/// multiprocessors is half busy at 4 s rows. Fitted to the wave counts of 128 x 128 tiles.
double fill(double rows, const DeviceProfile& profile) {
  return rows / (rows + 4.0 * profile.multiprocessors);
}

/// Of matrix products of this many rows, operations a second.
double matrix_rate(const StepWork& work, double rows, const DeviceProfile& profile) {
  const bool wide = work.dtype == DType::f32 || work.dtype == DType::f64;
  // A probe measures the precision of its run; the other is guessed.
  const double guess = wide ? profile.narrow_flops / 4 : profile.wide_flops;
  const double measured = wide ? profile.wide_flops : profile.narrow_flops;
  const double flops = measured > 0 ? measured : guess;
  return flops * fill(rows, profile);
}

/// Operations of a forward pass for a token.
struct ForwardWork {
  ForwardWork(const GPT2Config& config, std::int64_t seq_len)
      : all(config.flops_per_token(seq_len) / 3),
        head(2 * static_cast<double>(config.vocab_size) * static_cast<double>(config.n_embd)),
        layer((all - head) / static_cast<double>(config.n_layer)) {}

  double all, head, layer;
};

/// Seconds of what backward computes again in a block.
double recompute_of(Recompute mode, double layer, double pass) {
  if (mode == Recompute::block) return layer;
  return (mode == Recompute::gelu || mode == Recompute::gelu_ln ? 4 * pass : 0) +
         (mode == Recompute::gelu_ln ? 2 * pass : 0);
}

}  // namespace

StepTime predict_step(const GPT2Config& config, const MemoryChoice& choice, const StepWork& work,
                      const DeviceProfile& profile) {
  const auto width = static_cast<double>(size_of(work.dtype));
  const auto embedding = static_cast<double>(config.n_embd);
  const auto rows = static_cast<double>(choice.micro_batch * work.seq_len);
  const double micro_batches =
      static_cast<double>(work.batch) / static_cast<double>(choice.micro_batch);
  const double tokens = rows * micro_batches;

  StepTime time;
  const double rate = matrix_rate(work, rows, profile);
  const ForwardWork forward(config, work.seq_len);
  time.forward = tokens * forward.all / rate;
  time.backward = 2 * time.forward;
  // Sums of gradients are read and written for every micro-batch but the first.
  const double sums =
      static_cast<double>(config.parameter_count()) * (choice.narrow_gradients ? 4 : 8);
  time.backward += (micro_batches - 1) * sums / profile.memory_rate;

  // A pass that reads and writes one number per channel; GELU works on four times the width.
  const double pass = tokens * 2 * embedding * width / profile.memory_rate;
  for (const Recompute mode : choice.recompute)
    time.recompute += recompute_of(mode, tokens * forward.layer / rate, pass);

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

PartTime predict_part(const GPT2Config& config, const GPT2Part& part, const MemoryChoice& choice,
                      const StepWork& work, const DeviceProfile& profile) {
  const auto tokens = static_cast<double>(choice.micro_batch * work.seq_len);
  const double rate = matrix_rate(work, tokens, profile);
  const ForwardWork forward(config, work.seq_len);
  const double head = part.last == config.n_layer ? forward.head : 0;
  PartTime time;
  time.forward =
      tokens * (static_cast<double>(part.last - part.first) * forward.layer + head) / rate;
  time.backward = 2 * time.forward;
  const double pass = tokens * 2 * static_cast<double>(config.n_embd) *
                      static_cast<double>(size_of(work.dtype)) / profile.memory_rate;
  for (auto layer = part.first; layer < part.last; ++layer)
    time.backward += recompute_of(choice.recompute[static_cast<std::size_t>(layer)],
                                  tokens * forward.layer / rate, pass);
  // Sums of gradients are read and written. Of a table that only embeds they are a few rows.
  double parameters = 0;
  for (const Parameter& parameter : GPT2(config).parameters({part}))
    if (!parameter.embedding || head > 0)
      parameters += static_cast<double>(element_count(parameter.shape));
  time.backward += parameters * (choice.narrow_gradients ? 4 : 8) / profile.memory_rate;
  return time;
}

}  // namespace sluice
