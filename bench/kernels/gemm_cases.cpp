// The matrix products of a GPT-2: forward, gradient of the input and gradient of the weight, as
// engine/ops/linear/linear.cpp and linear_cross_entropy.cpp call them.

#include <fmt/format.h>

#include "bench/kernels/case.h"
#include "kernels/base/run.h"
#include "kernels/gemm.h"

namespace sluice::bench {
namespace {

struct Layer {
  const char* name;
  std::int64_t in, out;  ///< multiples of the model's width
};
constexpr Layer layers[] = {
    {"gemm_qkv", 1, 3}, {"gemm_projection", 1, 1}, {"gemm_fc", 1, 4}, {"gemm_fc_projection", 4, 1}};

/// Adds the bytes that a product must move and its number of operations.
Problem counted(std::int64_t m, std::int64_t n, std::int64_t k, Problem problem) {
  problem.dimensions = fmt::format("{}x{}x{}", m, n, k);
  problem.bytes = bytes_of(problem.operands);
  problem.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return problem;
}

Problem forward(const Extent& e, const Layer& layer, DType dtype) {
  const std::int64_t in = layer.in * e.width, out = layer.out * e.width;
  return counted(e.tokens, out, in,
                 {.operands = {{.dtype = dtype, .shape = {e.tokens, out}, .role = Role::output},
                               {.dtype = dtype, .shape = {e.tokens, in}},
                               {.dtype = dtype, .shape = {in, out}},
                               {.dtype = dtype, .shape = {out}}},
                  .launch = [](const Operands& v, Stream stream) {
                    run(Gemm{.out = v[0], .a = v[1], .b = v[2], .bias = v[3]}, stream);
                  }});
}

Problem input_gradient(const Extent& e, const Layer& layer, DType dtype) {
  const std::int64_t in = layer.in * e.width, out = layer.out * e.width;
  return counted(e.tokens, in, out,
                 {.operands = {{.dtype = dtype, .shape = {e.tokens, in}, .role = Role::output},
                               {.dtype = dtype, .shape = {e.tokens, out}},
                               {.dtype = dtype, .shape = {in, out}}},
                  .launch = [](const Operands& v, Stream stream) {
                    run(Gemm{.out = v[0], .a = v[1], .b = v[2], .transpose_b = true}, stream);
                  }});
}

Problem weight_gradient(const Extent& e, const Layer& layer, DType dtype) {
  const std::int64_t in = layer.in * e.width, out = layer.out * e.width;
  return counted(
      in, out, e.tokens,
      {.operands = {{.dtype = accumulator_of(dtype), .shape = {in, out}, .role = Role::updated},
                    {.dtype = dtype, .shape = {e.tokens, in}},
                    {.dtype = dtype, .shape = {e.tokens, out}}},
       .launch = [](const Operands& v, Stream stream) {
         run(Gemm{.out = v[0], .a = v[1], .b = v[2], .transpose_a = true, .accumulate = true},
             stream);
       }});
}

/// The products fused with the GELU of engine/ops/linear/mlp.cpp, run as there: in one step if the
/// GPU can, else in two. Comparing them with gemm_fc, gemm_fc_projection and gelu shows the gain of
/// fusing.
Problem forward_with_gelu(const Extent& e, DType dtype) {
  const std::int64_t in = e.width, out = 4 * e.width;
  return counted(
      e.tokens, out, in,
      {.operands = {{.dtype = dtype, .shape = {e.tokens, out}, .role = Role::output},
                    {.dtype = dtype, .shape = {e.tokens, in}},
                    {.dtype = dtype, .shape = {in, out}},
                    {.dtype = dtype, .shape = {out}},
                    {.dtype = dtype, .shape = {e.tokens, out}, .role = Role::output}},
       .launch = [](const Operands& v, Stream stream) {
         run(Gemm{.out = v[0], .a = v[1], .b = v[2], .bias = v[3], .pre_activation = v[4]}, stream);
       }});
}

Problem input_gradient_with_gelu(const Extent& e, DType dtype) {
  const std::int64_t in = 4 * e.width, out = e.width;
  return counted(
      e.tokens, in, out,
      {.operands = {{.dtype = dtype, .shape = {e.tokens, in}, .role = Role::output},
                    {.dtype = dtype, .shape = {e.tokens, out}},
                    {.dtype = dtype, .shape = {in, out}},
                    {.dtype = dtype, .shape = {e.tokens, in}}},
       .launch = [](const Operands& v, Stream stream) {
         run(Gemm{.out = v[0], .a = v[1], .b = v[2], .transpose_b = true, .gelu_input = v[3]},
             stream);
       }});
}

/// Logits are f32 also in 16-bit training.
Problem head_forward(const Extent& e, DType dtype) {
  return counted(e.tokens, e.vocabulary_stride, e.width,
                 {.operands = {{.dtype = accumulator_of(dtype),
                                .shape = {e.tokens, e.vocabulary_stride},
                                .role = Role::output,
                                .row_stride = e.vocabulary_stride},
                               {.dtype = dtype, .shape = {e.tokens, e.width}},
                               {.dtype = dtype, .shape = {e.vocabulary_stride, e.width}}},
                  .launch = [](const Operands& v, Stream stream) {
                    run(Gemm{.out = v[0], .a = v[1], .b = v[2], .transpose_b = true}, stream);
                  }});
}

/// The gradient overlays the logits: narrow elements at the row stride of wide ones.
Operand logits_gradient(const Extent& e, DType dtype) {
  const auto narrow = static_cast<std::int64_t>(size_of(accumulator_of(dtype)) / size_of(dtype));
  return {.dtype = dtype,
          .shape = {e.tokens, e.vocabulary_stride},
          .row_stride = narrow * e.vocabulary_stride};
}

/// Bytes without the gaps between rows.
double logits_bytes(const Extent& e, DType dtype) {
  return static_cast<double>(e.tokens * e.vocabulary_stride) * static_cast<double>(size_of(dtype));
}

Problem head_input_gradient(const Extent& e, DType dtype) {
  Problem problem =
      counted(e.tokens, e.width, e.vocabulary_stride,
              {.operands = {{.dtype = dtype, .shape = {e.tokens, e.width}, .role = Role::output},
                            logits_gradient(e, dtype),
                            {.dtype = dtype, .shape = {e.vocabulary_stride, e.width}}},
               .launch = [](const Operands& v, Stream stream) {
                 run(Gemm{.out = v[0], .a = v[1], .b = v[2]}, stream);
               }});
  problem.bytes += logits_bytes(e, dtype) - static_cast<double>(problem.operands[1].bytes());
  return problem;
}

Problem head_weight_gradient(const Extent& e, DType dtype) {
  Problem problem = counted(
      e.vocabulary_stride, e.width, e.tokens,
      {.operands = {{.dtype = accumulator_of(dtype),
                     .shape = {e.vocabulary_stride, e.width},
                     .role = Role::updated},
                    logits_gradient(e, dtype),
                    {.dtype = dtype, .shape = {e.tokens, e.width}}},
       .launch = [](const Operands& v, Stream stream) {
         run(Gemm{.out = v[0], .a = v[1], .b = v[2], .transpose_a = true, .accumulate = true},
             stream);
       }});
  problem.bytes += logits_bytes(e, dtype) - static_cast<double>(problem.operands[1].bytes());
  return problem;
}

using MakeProblem = std::function<Problem(const Extent&, DType)>;

}  // namespace

void add_gemm_cases(std::vector<Case>& cases) {
  const auto add = [&cases](const char* op, const char* variant, MakeProblem make) {
    cases.push_back({.op = op,
                     .variant = variant,
                     .dtypes = model_dtypes(),
                     .ceiling = Ceiling::gemm,
                     .make = std::move(make),
                     .goal = {.tflop_per_s = 600},
                     .least_checked_tokens = 64});
  };
  for (const Layer& layer : layers) {
    add(layer.name, "forward", [layer](const Extent& e, DType d) { return forward(e, layer, d); });
    add(layer.name, "dgrad",
        [layer](const Extent& e, DType d) { return input_gradient(e, layer, d); });
    add(layer.name, "wgrad",
        [layer](const Extent& e, DType d) { return weight_gradient(e, layer, d); });
  }
  add("gemm_gelu", "forward", forward_with_gelu);
  add("gemm_gelu", "dgrad", input_gradient_with_gelu);
  add("gemm_head", "forward", head_forward);
  add("gemm_head", "dgrad", head_input_gradient);
  add("gemm_head", "wgrad", head_weight_gradient);
}

}  // namespace sluice::bench
