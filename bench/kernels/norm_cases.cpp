#include <fmt/format.h>

#include "bench/kernels/case.h"
#include "kernels/base/run.h"
#include "kernels/norm.h"

namespace sluice::bench {
namespace {

Operand rows(const Extent& e, DType dtype, Role role = Role::input) {
  return {.dtype = dtype, .shape = {e.tokens, e.width}, .role = role};
}
Operand statistic(const Extent& e, DType dtype, Role role, Filling filling = Filling::normal) {
  return {.dtype = accumulator_of(dtype), .shape = {e.tokens}, .role = role, .filling = filling};
}
Operand line(const Extent& e, DType dtype, Role role = Role::input) {
  return {.dtype = dtype, .shape = {e.width}, .role = role};
}

Problem counted(const Extent& e, Problem problem) {
  problem.dimensions = fmt::format("{}x{}", e.tokens, e.width);
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

Problem forward(const Extent& e, DType dtype) {
  return counted(
      e,
      {.operands = {rows(e, dtype, Role::output), statistic(e, dtype, Role::output),
                    statistic(e, dtype, Role::output), rows(e, dtype), line(e, dtype),
                    line(e, dtype)},
       .launch = [](const Operands& v, Stream stream) {
         run(
             NormForward{
                 .out = v[0], .mean = v[1], .rstd = v[2], .in = v[3], .weight = v[4], .bias = v[5]},
             stream);
       }});
}

Problem residual(const Extent& e, DType dtype) {
  return counted(e,
                 {.operands = {rows(e, dtype, Role::output), rows(e, dtype, Role::output),
                               statistic(e, dtype, Role::output), statistic(e, dtype, Role::output),
                               rows(e, dtype), rows(e, dtype), line(e, dtype), line(e, dtype)},
                  .launch = [](const Operands& v, Stream stream) {
                    run(NormForward{.out = v[0],
                                    .sum = v[1],
                                    .mean = v[2],
                                    .rstd = v[3],
                                    .in = v[4],
                                    .branch = v[5],
                                    .weight = v[6],
                                    .bias = v[7]},
                        stream);
                  }});
}

/// As inside a block: adds the residual's gradient and accumulates the parameters' gradients.
Problem backward(const Extent& e, DType dtype) {
  return counted(
      e, {.operands = {rows(e, dtype, Role::output), line(e, accumulator_of(dtype), Role::updated),
                       line(e, accumulator_of(dtype), Role::updated), rows(e, dtype),
                       rows(e, dtype), rows(e, dtype), statistic(e, dtype, Role::input),
                       statistic(e, dtype, Role::input, Filling::positive), line(e, dtype)},
          .launch = [](const Operands& v, Stream stream) {
            run(NormBackward{.grad_in = v[0],
                             .grad_weight = v[1],
                             .grad_bias = v[2],
                             .grad_out = v[3],
                             .grad_sum = v[4],
                             .normalized_in = v[5],
                             .mean = v[6],
                             .rstd = v[7],
                             .weight = v[8],
                             .accumulate_weight = true,
                             .accumulate_bias = true},
                stream);
          }});
}

Problem rms_residual(const Extent& e, DType dtype) {
  return counted(e, {.operands = {rows(e, dtype, Role::output), rows(e, dtype, Role::output),
                                  statistic(e, dtype, Role::output), rows(e, dtype), rows(e, dtype),
                                  line(e, dtype)},
                     .launch = [](const Operands& v, Stream stream) {
                       run(NormForward{.out = v[0],
                                       .sum = v[1],
                                       .rstd = v[2],
                                       .in = v[3],
                                       .branch = v[4],
                                       .weight = v[5]},
                           stream);
                     }});
}

Problem rms_backward(const Extent& e, DType dtype) {
  return counted(
      e, {.operands = {rows(e, dtype, Role::output), line(e, accumulator_of(dtype), Role::updated),
                       rows(e, dtype), rows(e, dtype), rows(e, dtype),
                       statistic(e, dtype, Role::input, Filling::positive), line(e, dtype)},
          .launch = [](const Operands& v, Stream stream) {
            run(NormBackward{.grad_in = v[0],
                             .grad_weight = v[1],
                             .grad_out = v[2],
                             .grad_sum = v[3],
                             .normalized_in = v[4],
                             .rstd = v[5],
                             .weight = v[6],
                             .accumulate_weight = true},
                stream);
          }});
}

}  // namespace

void add_norm_cases(std::vector<Case>& cases) {
  cases.push_back({.op = "layernorm",
                   .variant = "forward",
                   .dtypes = model_dtypes(),
                   .make = forward,
                   .goal = {.of_copy = 0.85}});
  cases.push_back({.op = "layernorm",
                   .variant = "residual",
                   .dtypes = model_dtypes(),
                   .make = residual,
                   .goal = {.of_copy = 0.85}});
  cases.push_back({.op = "layernorm",
                   .variant = "backward",
                   .dtypes = model_dtypes(),
                   .make = backward,
                   .goal = {.of_copy = 0.70}});
  cases.push_back({.op = "rmsnorm",
                   .variant = "residual",
                   .dtypes = model_dtypes(),
                   .make = rms_residual,
                   .goal = {.of_copy = 0.85}});
  cases.push_back({.op = "rmsnorm",
                   .variant = "backward",
                   .dtypes = model_dtypes(),
                   .make = rms_backward,
                   .goal = {.of_copy = 0.70}});
}

}  // namespace sluice::bench
