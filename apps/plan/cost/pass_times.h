#pragma once

#include "apps/plan/cost/cost_model.h"

namespace sluice {

/// Floating-point operations per token of a forward pass, on shard 0 of a number of tensor-parallel
/// ranks. Causal attention counts half, as in DecoderConfig::flops_per_token.
struct ForwardWork {
  ForwardWork(const DecoderConfig& config, std::int64_t seq_len, std::int64_t ranks);

  double layer() const { return products + attention; }

  double products = 0;   ///< a layer's products with weights
  double attention = 0;  ///< a layer's products of queries, keys and values
  /// The products into attention and into the MLP. Their input gradients are summed over ranks.
  double attention_in = 0, mlp_in = 0;
  double head = 0;
};

/// Predicted seconds of a micro-batch on one rank, without waits, recompute and accumulation.
///
/// On a GPU in 16 bits they are sums over kernels: products at the profile's rate, slower if a
/// batch does not fill the device, and this program's kernels at their KernelRates. Elsewhere a
/// pass takes the time of its operations at the rate of whole passes.
struct PassTimes {
  double layer_forward = 0, layer_backward = 0;
  double head_forward = 0, head_backward = 0;  ///< with the LayerNorm before it and the loss
  double embedding_backward = 0;
  double gelu = 0, norms = 0;           ///< each once, as recomputation does them
  double weights = 0;                   ///< part of layer_backward: weights' gradients
  double attention_in = 0, mlp_in = 0;  ///< products, forward
};

/// Operations per second of matrix products with this many rows.
double matrix_rate(const StepWork& work, double rows, const DeviceProfile& profile);

PassTimes pass_times(const DecoderConfig& config, const MemoryChoice& choice, const StepWork& work,
                     const DeviceProfile& profile);

}  // namespace sluice
