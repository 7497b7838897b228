#pragma once

#include "kernels/attention.h"
#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// RMSNorm of each head of q and of k before attention (Henry et al., "Query-key normalization",
/// 2020, with the norm of Qwen3):
///   out = in * rstd * weight, with rstd = 1 / sqrt(mean over the head of in^2 + epsilon)
/// The heads of q, k and v lie side by side in rows, as attention reads them; those of v are
/// copied. in, out: [B, T, in_row * head width]; query_weight, key_weight: [head width], which is
/// at most max_width.
struct QueryKeyNormForward {
  static constexpr int max_width = 256;

  View out;
  View in;
  View query_weight;
  View key_weight;
  AttentionHeads heads{};
  double epsilon = 1e-6;
};
void launch_cpu(const QueryKeyNormForward& op);
void launch_cuda(const QueryKeyNormForward& op, Stream stream);

/// grad_in: as `in`, may not be grad_out. grad_query_weight, grad_key_weight: [head width], f32
/// (f64), summed over rows and heads in a fixed order; `accumulate_*` adds to them. The statistics
/// are computed again from `in`.
struct QueryKeyNormBackward {
  View grad_in;
  View grad_query_weight;
  View grad_key_weight;
  View grad_out;
  View in;
  View query_weight;
  View key_weight;
  AttentionHeads heads{};
  double epsilon = 1e-6;
  bool accumulate_query = false;
  bool accumulate_key = false;
};
void launch_cpu(const QueryKeyNormBackward& op);
void launch_cuda(const QueryKeyNormBackward& op, Stream stream);

}  // namespace sluice
