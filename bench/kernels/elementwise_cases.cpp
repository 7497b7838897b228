// Ops that touch each element once, at the sizes that GPT-2 uses.

#include <fmt/format.h>

#include "bench/kernels/case.h"
#include "kernels/base/run.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/quantized.h"
#include "kernels/reduce.h"
#include "kernels/swiglu.h"

namespace sluice::bench {
namespace {

using Launch = std::function<void(const Operands&, Stream)>;

constexpr Goal streaming{.of_copy = 0.92};

/// A case with one output and some inputs, all of the same dtype and width.
Case streaming_case(const char* op, const char* variant, std::int64_t width_factor, int inputs,
                    const Launch& launch) {
  const auto make = [=](const Extent& e, DType dtype) {
    const std::int64_t width = width_factor * e.width;
    std::vector<Operand> operands(static_cast<std::size_t>(inputs) + 1,
                                  {.dtype = dtype, .shape = {e.tokens, width}});
    operands[0].role = Role::output;
    return Problem{.dimensions = fmt::format("{}x{}", e.tokens, width),
                   .operands = operands,
                   .launch = launch,
                   .bytes = bytes_of(operands)};
  };
  return {.op = op, .variant = variant, .dtypes = model_dtypes(), .make = make, .goal = streaming};
}

Problem swiglu_problem(const Extent& e, std::vector<Operand> operands, const Launch& launch) {
  return {.dimensions = fmt::format("{}x{}", e.tokens, 4 * e.width),
          .operands = operands,
          .launch = launch,
          .bytes = bytes_of(operands)};
}

Problem swiglu_forward(const Extent& e, DType dtype) {
  return swiglu_problem(e,
                        {{.dtype = dtype, .shape = {e.tokens, 4 * e.width}, .role = Role::output},
                         {.dtype = dtype, .shape = {e.tokens, 8 * e.width}}},
                        [](const Operands& v, Stream stream) {
                          run(SwigluForward{.out = v[0], .in = v[1]}, stream);
                        });
}

Problem swiglu_backward(const Extent& e, DType dtype) {
  return swiglu_problem(e,
                        {{.dtype = dtype, .shape = {e.tokens, 8 * e.width}, .role = Role::output},
                         {.dtype = dtype, .shape = {e.tokens, 4 * e.width}},
                         {.dtype = dtype, .shape = {e.tokens, 8 * e.width}}},
                        [](const Operands& v, Stream stream) {
                          run(SwigluBackward{.grad_in = v[0], .grad_out = v[1], .in = v[2]},
                              stream);
                        });
}

Problem cast_problem(const Extent& e, DType in, DType out) {
  const std::vector<Operand> operands{
      {.dtype = out, .shape = {e.tokens, e.width}, .role = Role::output},
      {.dtype = in, .shape = {e.tokens, e.width}}};
  return {.dimensions = fmt::format("{}x{}", e.tokens, e.width),
          .operands = operands,
          .launch = [](const Operands& v,
                       Stream stream) { run(Cast{.out = v[0], .in = v[1]}, stream); },
          .bytes = bytes_of(operands)};
}

Problem dropout_problem(const Extent& e, DType dtype) {
  const std::int64_t size = e.positions * e.width;
  const std::vector<Operand> operands{
      {.dtype = dtype, .shape = {e.sequences(), size}, .role = Role::output},
      {.dtype = dtype, .shape = {e.sequences(), size}}};
  return {.dimensions = fmt::format("{}x{}", e.tokens, e.width),
          .operands = operands,
          .launch =
              [](const Operands& v, Stream stream) {
                run(Dropout{.out = v[0],
                            .in = v[1],
                            .mask = {.key = 0xD50B, .probability = 0.1f, .first_sample = 0}},
                    stream);
              },
          .bytes = bytes_of(operands)};
}

/// The MLP's first matrix in 8 bits, as adapters are trained beside it.
Problem dequantize_problem(const Extent& e, DType dtype) {
  const std::int64_t columns = 4 * e.width;
  const std::vector<Operand> operands{
      {.dtype = dtype, .shape = {e.width, columns}, .role = Role::output},
      {.dtype = DType::i8, .shape = {e.width, columns}, .filling = Filling::codes},
      {.dtype = DType::f16, .shape = {e.width, quantized_blocks(columns)}}};
  return {.dimensions = fmt::format("{}x{}", e.width, columns),
          .operands = operands,
          .launch =
              [](const Operands& v, Stream stream) {
                run(Dequantize{.out = v[0], .codes = v[1], .scales = v[2]}, stream);
              },
          .bytes = bytes_of(operands)};
}

/// The bias gradient of the MLP's first matrix.
Problem column_sum_problem(const Extent& e, DType dtype) {
  const std::int64_t columns = 4 * e.width;
  const std::vector<Operand> operands{
      {.dtype = accumulator_of(dtype), .shape = {columns}, .role = Role::updated},
      {.dtype = dtype, .shape = {e.tokens, columns}}};
  return {.dimensions = fmt::format("{}x{}", e.tokens, columns),
          .operands = operands,
          .launch =
              [](const Operands& v, Stream stream) {
                run(ColumnSum{.out = v[0], .in = v[1], .accumulate = true}, stream);
              },
          .bytes = bytes_of(operands)};
}

}  // namespace

void add_elementwise_cases(std::vector<Case>& cases) {
  cases.push_back(streaming_case("gelu", "forward", 4, 1, [](const Operands& v, Stream stream) {
    run(GeluForward{.out = v[0], .in = v[1]}, stream);
  }));
  cases.push_back(streaming_case("gelu", "backward", 4, 2, [](const Operands& v, Stream stream) {
    run(GeluBackward{.grad_in = v[0], .grad_out = v[1], .in = v[2]}, stream);
  }));
  cases.push_back({.op = "swiglu",
                   .variant = "forward",
                   .dtypes = model_dtypes(),
                   .make = swiglu_forward,
                   .goal = streaming});
  cases.push_back({.op = "swiglu",
                   .variant = "backward",
                   .dtypes = model_dtypes(),
                   .make = swiglu_backward,
                   .goal = streaming});
  cases.push_back(streaming_case("relu", "forward", 4, 1, [](const Operands& v, Stream stream) {
    run(ReluForward{.out = v[0], .in = v[1]}, stream);
  }));
  cases.push_back(streaming_case("relu", "backward", 4, 2, [](const Operands& v, Stream stream) {
    run(ReluBackward{.grad_in = v[0], .grad_out = v[1], .out = v[2]}, stream);
  }));
  cases.push_back(streaming_case("add", "forward", 1, 2, [](const Operands& v, Stream stream) {
    run(Add{.out = v[0], .a = v[1], .b = v[2]}, stream);
  }));
  cases.push_back({.op = "dropout",
                   .variant = "forward",
                   .dtypes = model_dtypes(),
                   .make = dropout_problem,
                   .goal = streaming});
  const std::vector<DType> narrow{DType::bf16, DType::f16};
  cases.push_back(
      {.op = "cast",
       .variant = "from_fp32",
       .dtypes = narrow,
       .make = [](const Extent& e, DType d) { return cast_problem(e, accumulator_of(d), d); },
       .goal = streaming});
  cases.push_back(
      {.op = "cast",
       .variant = "to_fp32",
       .dtypes = narrow,
       .make = [](const Extent& e, DType d) { return cast_problem(e, d, accumulator_of(d)); },
       .goal = streaming});
  cases.push_back({.op = "dequantize",
                   .variant = "forward",
                   .dtypes = model_dtypes(),
                   .make = dequantize_problem,
                   .goal = streaming});
  cases.push_back(streaming_case("fill", "forward", 1, 0, [](const Operands& v, Stream stream) {
    run(Fill{.out = v[0], .value = 0.25}, stream);
  }));
  cases.back().goal = {};
  cases.push_back({.op = "column_sum",
                   .variant = "backward",
                   .dtypes = model_dtypes(),
                   .make = column_sum_problem,
                   .goal = {.of_copy = 0.80}});
}

}  // namespace sluice::bench
