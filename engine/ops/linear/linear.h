#pragma once

#include "engine/ops/recomputable.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"
#include "kernels/gemm.h"

namespace sluice {

/// How a weight is stored: as Hugging Face's Conv1D, [in, out], or as PyTorch's nn.Linear,
/// [out, in].
enum class WeightLayout : std::uint8_t { in_out, out_in };
std::int64_t inputs_of(const Tensor& weight, WeightLayout layout);
std::int64_t outputs_of(const Tensor& weight, WeightLayout layout);

struct LinearOptions {
  WeightLayout layout = WeightLayout::in_out;
  Recomputable recomputable{};  ///< recomputes x; kept for backward instead of x
  Recomputable weight{};        ///< recomputes the weight; kept for backward instead of it
  /// Ranks that divide the columns of the weight: each computes some of the outputs. Their parts of
  /// x's gradient are summed while the weight's gradients are computed.
  TensorGroup* columns = nullptr;
  /// Ranks that divide the rows of the weight: each has some columns of x. Their parts of the
  /// result are summed. Only rank 0 adds the bias, whose gradient is the same on all ranks.
  TensorGroup* rows = nullptr;
  /// `tokens` of TensorGroup: for x if columns are divided, for the result if rows are divided.
  Shape tokens{};
};

/// x W + b over the last dimension. x: [..., in]; weight: [in, out], or [out, in] by its layout;
/// bias: [out] or none; result: [..., out] in x's dtype. Throws Error if the widths differ.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const LinearOptions& options = {});

/// The logits x W^T + b of a vocabulary head W, [out, in], in the dtype that x is summed in, in
/// which those of 16-bit runs can be compared exactly. bias: [out] or none. Used for generation;
/// records no graph.
Tensor logits_of(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// The parts of x W + b, for the ops that contain it. grad: the gradient of the result.

/// Returns the product without its epilogue, which writes to `out`. `x` and `out` are matrices.
Gemm product(const View& out, const View& x, const Tensor& weight, WeightLayout layout);
/// Returns the gradient of x. `tokens`: the shape of x but for its last dimension.
Tensor input_gradient(const Tensor& grad, const Tensor& weight, WeightLayout layout, Shape tokens);
/// Hands over the gradients of W, which is the running node's input `weight`, and of b, the next
/// input, if they are wanted; later, if the pass defers them.
void add_weight_gradients(std::size_t weight, WeightLayout layout, const Tensor& x,
                          const Tensor& grad, Backward& pass);

}  // namespace sluice
