#include "apps/plan/cost/pass_times.h"

#include <algorithm>
#include <cmath>

#include "apps/plan/cost/kernel_rates.h"
#include "models/lora/targets.h"

namespace sluice {
namespace {

/// Returns the fraction of the device's peak rate that matrix products with this many rows reach:
/// one half at 4 s rows for s multiprocessors, by the waves of 128 x 128 tiles. The exponent is
/// fitted to whole steps with 4096 to 16384 rows on an H200.
double fill(double rows, const DeviceProfile& profile) {
  const double half = 4.0 * profile.multiprocessors;
  return 1 / (1 + std::pow(half / rows, 1.5));
}

bool is_wide(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64;
}

}  // namespace

double matrix_rate(const StepWork& work, double rows, const DeviceProfile& profile) {
  const bool wide = is_wide(work.dtype);
  // A probe measures only the precision of its run; the rate of the other one is guessed.
  const double ratio = profile.gpu ? gpu_narrow_over_wide : 4;
  const double guess = wide ? profile.narrow_flops / ratio : profile.wide_flops * ratio;
  const double measured = wide ? profile.wide_flops : profile.narrow_flops;
  const double flops = measured > 0 ? measured : guess;
  return flops * fill(rows / static_cast<double>(work.shards.ranks), profile);
}

ForwardWork::ForwardWork(const DecoderConfig& config, std::int64_t seq_len, std::int64_t ranks) {
  const DecoderShard shard(config, 0, static_cast<int>(ranks));
  const auto embedding = static_cast<double>(config.n_embd);
  const auto width = static_cast<double>(shard.width.end);
  const auto inner = static_cast<double>(shard.inner.end);
  const auto qkv = static_cast<double>(shard.qkv_columns());
  const auto mlp = static_cast<double>(shard.mlp_columns());
  products = 2 * embedding * (qkv + width + mlp + inner);
  attention = 2 * static_cast<double>(seq_len) * width;
  attention_in = 2 * embedding * qkv;
  mlp_in = 2 * embedding * mlp;
  head = 2 * static_cast<double>(shard.vocabulary.end) * embedding;
}

namespace {

PassTimes times_of_training_all(const DecoderConfig& config, const MemoryChoice& choice,
                                const StepWork& work, const DeviceProfile& profile) {
  const auto tokens = static_cast<double>(choice.micro_batch * work.seq_len);
  const auto ranks = static_cast<double>(work.shards.ranks);
  const auto embedding = static_cast<double>(config.n_embd);
  const ForwardWork forward(config, work.seq_len, work.shards.ranks);
  const double rate = matrix_rate(work, tokens, profile);
  const auto norms = static_cast<double>(config.block_norms());

  PassTimes times;
  if (!profile.gpu || is_wide(work.dtype)) {
    // A pass that reads and writes the residual stream once; GELU's is four times as wide.
    const double pass =
        tokens * 2 * embedding * static_cast<double>(size_of(work.dtype)) / profile.memory_rate;
    times = {.layer_forward = tokens * forward.layer() / rate,
             .head_forward = tokens * forward.head / rate,
             .gelu = 4 * pass / ranks,
             .norms = norms * pass,
             .weights = tokens * forward.products / rate,
             .attention_in = tokens * forward.attention_in / rate,
             .mlp_in = tokens * forward.mlp_in / rate};
    times.layer_backward = 2 * times.layer_forward;
    times.head_backward = 2 * times.head_forward;
    return times;
  }

  const KernelRates& rates = kernel_rates(profile.capability);
  const DecoderShard shard(config, 0, static_cast<int>(work.shards.ranks));
  const auto inner = static_cast<double>(shard.inner.end);
  const bool gated = config.activation == MlpActivation::swiglu;
  // Ranks that divide tokens divide the work on the residual stream, too.
  const double stream = tokens * embedding / (work.shards.divide_tokens ? ranks : 1);
  const double block_rate = rate * rates.products;
  const double products = tokens * forward.products / block_rate;
  const double attention = tokens * forward.attention / rate;
  // SwiGLU's own passes move 3 and 5 elements for each of its results, where GELU's move 2 and 3.
  times.gelu = rates.gelu.seconds(tokens * inner * (gated ? 1.5 : 1), profile);
  const double layernorm = rates.layernorm_sum.seconds(stream, profile);
  times.norms = norms * layernorm;
  times.weights = products;
  times.attention_in = tokens * forward.attention_in / block_rate;
  times.mlp_in = tokens * forward.mlp_in / block_rate;
  times.layer_forward = products + times.gelu + times.norms +
                        attention / (work.dropout ? rates.attention_dropout : rates.attention);
  // From compute capability 9.0 on a product multiplies by the slope of GELU, unless adapters come
  // between the products.
  const bool adapts = config.lora.rank > 0;
  const double slope =
      profile.capability >= 90 && config.activation == MlpActivation::gelu && !adapts
          ? 0
          : rates.gelu_backward.seconds(tokens * inner * (gated ? 5.0 / 3 : 1), profile);
  const double layernorm_backward = rates.layernorm_backward.seconds(stream, profile);
  times.layer_backward =
      2 * products + slope + norms * layernorm_backward +
      rates.bias_gradient.seconds(
          adapts ? 0 : tokens * static_cast<double>(bias_columns(config, shard)), profile) +
      // Five products, where the forward pass has two.
      2.5 * attention /
          (work.dropout ? rates.attention_dropout_backward : rates.attention_backward);
  // Passes that only some families have: over q, k and v, or over the stream. They read one or two
  // elements and write one, as GELU and its gradient do.
  const double qkv = tokens * static_cast<double>(shard.qkv_columns());
  if (config.fused_heads) {
    times.layer_forward += rates.gelu.seconds(qkv, profile);
    times.layer_backward += rates.gelu.seconds(qkv, profile);
  }
  if (shard.sharers > 1) {
    times.layer_forward += rates.gelu.seconds(qkv, profile);
    times.layer_backward += rates.gelu.seconds(qkv, profile);
  }
  if (config.query_key_norm) {
    times.layer_forward += rates.gelu.seconds(qkv, profile);
    times.layer_backward += rates.gelu_backward.seconds(qkv, profile);
  }
  if (config.block != BlockKind::sequential)
    times.layer_forward += rates.gelu_backward.seconds(stream, profile);
  times.head_forward = tokens * forward.head / rate + layernorm;
  times.head_backward =
      2 * tokens * forward.head / rate + layernorm_backward +
      rates.cross_entropy.seconds(tokens * static_cast<double>(shard.vocabulary.end), profile);
  times.embedding_backward = rates.embedding_backward.seconds(stream, profile);
  return times;
}

}  // namespace

namespace {

/// Returns the seconds in which a block's matrices are read in 8.5 bits an element and written in
/// the dtype of the products.
double dequantization(const DecoderConfig& config, const StepWork& work,
                      const DeviceProfile& profile) {
  const double elements =
      static_cast<double>(config.block_matrices()) / static_cast<double>(work.shards.ranks);
  return elements * (8.5 / 8 + static_cast<double>(size_of(work.dtype))) / profile.memory_rate;
}

/// Returns the seconds of the products with a block's adapters in a forward pass: twice as many
/// operations as adapters have parameters for each token, and all that is read and written of the
/// inputs and outputs of the adapted layers. The products are narrow, so memory mostly bounds them.
double adapter_products(const DecoderConfig& config, const MemoryChoice& choice,
                        const StepWork& work, const DeviceProfile& profile) {
  const auto tokens = static_cast<double>(choice.micro_batch * work.seq_len);
  const double parameters = static_cast<double>(adapter_parameters(config)) /
                            static_cast<double>(config.n_layer * work.shards.ranks);
  // Inputs are read, and outputs read and written.
  const double elements = 1.5 * tokens * parameters / static_cast<double>(config.lora.rank);
  return std::max(2 * tokens * parameters / matrix_rate(work, tokens, profile),
                  elements * static_cast<double>(size_of(work.dtype)) / profile.memory_rate);
}

}  // namespace

PassTimes pass_times(const DecoderConfig& config, const MemoryChoice& choice, const StepWork& work,
                     const DeviceProfile& profile) {
  PassTimes times = times_of_training_all(config, choice, work, profile);
  if (config.lora.rank == 0) return times;
  // The products for the gradients of all weights are left out. Adapters have twice as many of
  // their own in a backward pass as in a forward pass.
  times.layer_backward -= times.weights;
  times.head_backward -= times.head_forward;
  times.embedding_backward = times.weights = 0;
  const double adapters = adapter_products(config, choice, work, profile);
  times.layer_forward += adapters;
  times.layer_backward += 2 * adapters;
  if (config.lora.int8_base) {
    const double seconds = dequantization(config, work, profile);
    times.layer_forward += seconds;
    times.layer_backward += seconds;
  }
  return times;
}

}  // namespace sluice
