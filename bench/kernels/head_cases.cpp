// Ops at the two ends of a model: the embedding, the loss and the sampling of a token.

#include <fmt/format.h>

#include <algorithm>

#include "bench/kernels/case.h"
#include "kernels/base/run.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/sample.h"

namespace sluice::bench {
namespace {

Operand token_ids(const Extent& e) {
  return {.dtype = DType::i32, .shape = {e.sequences(), e.positions}, .filling = Filling::tokens};
}

Problem embedding_forward(const Extent& e, DType dtype) {
  const double element = static_cast<double>(size_of(dtype));
  return {.dimensions = fmt::format("{}x{}", e.tokens, e.width),
          .operands = {{.dtype = dtype,
                        .shape = {e.sequences(), e.positions, e.width},
                        .role = Role::output},
                       token_ids(e),
                       {.dtype = dtype, .shape = {e.vocabulary, e.width}},
                       {.dtype = dtype, .shape = {e.positions, e.width}}},
          .launch =
              [](const Operands& v, Stream stream) {
                run(
                    EmbeddingForward{
                        .out = v[0], .tokens = v[1], .token_table = v[2], .position_table = v[3]},
                    stream);
              },
          // One row of the table per token, and the positions once.
          .bytes = static_cast<double>((2 * e.tokens + e.positions) * e.width) * element +
                   4.0 * static_cast<double>(e.tokens)};
}

Problem embedding_backward(const Extent& e, DType dtype) {
  const DType sums = accumulator_of(dtype);
  // The expected number of distinct rows in n draws from V is V (1 - (1 - 1/V)^n). For these n that
  // is close to n, so the smaller of n and V is an upper bound.
  const std::int64_t touched = std::min(e.tokens, e.vocabulary) + e.positions;
  return {
      .dimensions = fmt::format("{}x{}", e.tokens, e.width),
      .operands = {{.dtype = sums, .shape = {e.vocabulary, e.width}, .role = Role::updated},
                   {.dtype = sums, .shape = {e.positions, e.width}, .role = Role::updated},
                   {.dtype = dtype, .shape = {e.sequences(), e.positions, e.width}},
                   token_ids(e)},
      .launch =
          [](const Operands& v, Stream stream) {
            run(EmbeddingBackward{.grad_token_table = v[0],
                                  .grad_position_table = v[1],
                                  .grad_out = v[2],
                                  .tokens = v[3]},
                stream);
          },
      .bytes = static_cast<double>(e.tokens * e.width) * static_cast<double>(size_of(dtype)) +
               2.0 * static_cast<double>(touched * e.width) * static_cast<double>(size_of(sums)) +
               4.0 * static_cast<double>(e.tokens)};
}

/// Logits are f32 and are read once; their gradient is written in the model's dtype. Here it has
/// memory of its own, so that a repetition finds the logits unchanged.
Problem cross_entropy(const Extent& e, DType dtype, bool gradient) {
  const DType sums = accumulator_of(dtype);
  const std::int64_t padding = e.vocabulary_stride - e.vocabulary;
  Problem problem{
      .dimensions = fmt::format("{}x{}", e.tokens, e.vocabulary),
      .operands = {{.dtype = sums, .shape = {e.tokens}, .role = Role::output},
                   {.dtype = sums,
                    .shape = {e.tokens, e.vocabulary},
                    .filling = Filling::logits,
                    .row_stride = e.vocabulary_stride},
                   {.dtype = DType::i32, .shape = {e.tokens}, .filling = Filling::tokens}},
      .launch = [=](const Operands& v, Stream stream) {
        CrossEntropy op{.losses = v[0], .logits = v[1], .targets = v[2]};
        if (gradient) {
          op.gradient = v[3];
          op.padding = padding;
        }
        run(op, stream);
      }};
  problem.bytes =
      static_cast<double>(e.tokens * e.vocabulary) * static_cast<double>(size_of(sums)) +
      static_cast<double>(e.tokens) * static_cast<double>(size_of(sums) + 4);
  if (gradient) {
    problem.operands.push_back({.dtype = dtype,
                                .shape = {e.tokens, e.vocabulary},
                                .role = Role::output,
                                .row_stride = e.vocabulary_stride});
    problem.bytes += static_cast<double>(problem.operands.back().bytes());
  }
  return problem;
}

Problem sample_token(const Extent& e, float temperature, std::int64_t top_k, float top_p) {
  constexpr std::int64_t rows = 8;
  return {
      .dimensions = fmt::format("{}x{}", rows, e.vocabulary),
      .operands = {{.dtype = DType::i32, .shape = {rows}, .role = Role::output},
                   {.dtype = DType::f32, .shape = {rows, e.vocabulary}, .filling = Filling::logits},
                   {.dtype = DType::f32, .shape = {rows}, .filling = Filling::unit}},
      .launch =
          [=](const Operands& v, Stream stream) {
            run(SampleToken{.tokens = v[0],
                            .logits = v[1],
                            .points = v[2],
                            .temperature = temperature,
                            .top_k = top_k,
                            .top_p = top_p},
                stream);
          },
      .bytes = 4.0 * static_cast<double>(rows * (e.vocabulary + 2))};
}

}  // namespace

void add_head_cases(std::vector<Case>& cases) {
  cases.push_back({.op = "embedding",
                   .variant = "forward",
                   .dtypes = model_dtypes(),
                   .make = embedding_forward});
  cases.push_back({.op = "embedding",
                   .variant = "backward",
                   .dtypes = model_dtypes(),
                   .make = embedding_backward});
  cases.push_back({.op = "cross_entropy",
                   .variant = "loss",
                   .dtypes = {DType::f32},
                   .make = [](const Extent& e, DType d) { return cross_entropy(e, d, false); },
                   .goal = {.of_copy = 0.80}});
  cases.push_back({.op = "cross_entropy",
                   .variant = "gradient",
                   .dtypes = model_dtypes(),
                   .make = [](const Extent& e, DType d) { return cross_entropy(e, d, true); },
                   .goal = {.of_copy = 0.80}});
  // The reference is f32, because ties and sums near a threshold must fall as they do in f32.
  cases.push_back({.op = "sample_token",
                   .variant = "greedy",
                   .dtypes = {DType::f32},
                   .make = [](const Extent& e, DType) { return sample_token(e, 0, 0, 1); },
                   .reference = DType::f32});
  cases.push_back({.op = "sample_token",
                   .variant = "top_k",
                   .dtypes = {DType::f32},
                   .make = [](const Extent& e, DType) { return sample_token(e, 0.8f, 200, 0.95f); },
                   .reference = DType::f32});
}

}  // namespace sluice::bench
