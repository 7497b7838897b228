// Kernels that work on q, k and v where they lie side by side in a row, before attention reads
// them.

#include <fmt/format.h>

#include "bench/kernels/case.h"
#include "kernels/base/run.h"
#include "kernels/copy_columns.h"
#include "kernels/head_order.h"
#include "kernels/query_key_norm.h"
#include "kernels/rotary.h"
#include "models/decoder/config.h"

namespace sluice::bench {
namespace {

AttentionHeads heads_of(const Extent& e) {
  return {static_cast<int>(e.heads), static_cast<int>(e.key_value_heads())};
}
std::int64_t head_width(const Extent& e) {
  return e.width / e.heads;
}

Operand rows(const Extent& e, DType dtype, std::int64_t heads, Role role) {
  return {
      .dtype = dtype, .shape = {e.sequences(), e.positions, heads * head_width(e)}, .role = role};
}
Operand shared_rows(const Extent& e, DType dtype, Role role = Role::input) {
  return rows(e, dtype, heads_of(e).in_row(), role);
}
Operand weight(const Extent& e, DType dtype, Role role = Role::input) {
  return {.dtype = dtype, .shape = {head_width(e)}, .role = role};
}

Problem counted(const Extent& e, std::int64_t heads, Problem problem) {
  problem.dimensions = fmt::format("{}x{}x{}x{}", e.sequences(), e.positions, heads, head_width(e));
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

/// SmolLM2's angles, for heads of the extent's width.
RotaryAngles angles_of(const Extent& e) {
  DecoderConfig config = *preset("smollm2-135m");
  config.head_width = head_width(e);
  return *rotary_angles(config);
}

/// Turns q and k in place; v is not read.
Problem rotary(const Extent& e, DType dtype) {
  const AttentionHeads heads = heads_of(e);
  const int turned = heads.query + heads.key_value;
  Problem problem = counted(
      e, turned,
      {.operands = {shared_rows(e, dtype, Role::updated)},
       .launch = [turned, width = static_cast<int>(head_width(e)), angles = angles_of(e)](
                     const Operands& v, Stream stream) {
         run(Rotary{.rows = v[0], .heads = turned, .head_width = width, .angles = angles}, stream);
       }});
  problem.bytes = 2 * static_cast<double>(rows(e, dtype, turned, Role::input).bytes());
  return problem;
}

Problem norm_forward(const Extent& e, DType dtype) {
  const AttentionHeads heads = heads_of(e);
  return counted(
      e, heads.in_row(),
      {.operands = {shared_rows(e, dtype, Role::output), shared_rows(e, dtype), weight(e, dtype),
                    weight(e, dtype)},
       .launch = [heads](const Operands& v, Stream stream) {
         run(
             QueryKeyNormForward{
                 .out = v[0], .in = v[1], .query_weight = v[2], .key_weight = v[3], .heads = heads},
             stream);
       }});
}

Problem norm_backward(const Extent& e, DType dtype) {
  const AttentionHeads heads = heads_of(e);
  return counted(
      e, heads.in_row(),
      {.operands = {shared_rows(e, dtype, Role::output),
                    weight(e, accumulator_of(dtype), Role::updated),
                    weight(e, accumulator_of(dtype), Role::updated), shared_rows(e, dtype),
                    shared_rows(e, dtype), weight(e, dtype), weight(e, dtype)},
       .launch = [heads](const Operands& v, Stream stream) {
         run(QueryKeyNormBackward{.grad_in = v[0],
                                  .grad_query_weight = v[1],
                                  .grad_key_weight = v[2],
                                  .grad_out = v[3],
                                  .in = v[4],
                                  .query_weight = v[5],
                                  .key_weight = v[6],
                                  .heads = heads,
                                  .accumulate_query = true,
                                  .accumulate_key = true},
             stream);
       }});
}

Problem head_order(const Extent& e, DType dtype) {
  return counted(e, 3 * e.heads,
                 {.operands = {rows(e, dtype, 3 * e.heads, Role::output),
                               rows(e, dtype, 3 * e.heads, Role::input)},
                  .launch = [heads = static_cast<int>(e.heads)](const Operands& v, Stream stream) {
                    run(HeadOrder{.out = v[0], .in = v[1], .heads = heads}, stream);
                  }});
}

/// The columns of k and v, as ranks that share heads gather them.
Problem copy_columns(const Extent& e, DType dtype) {
  const AttentionHeads heads = heads_of(e);
  const std::int64_t first = heads.query * head_width(e);
  const std::int64_t columns = 2 * heads.key_value * head_width(e);
  const Operand out{.dtype = dtype, .shape = {e.tokens, columns}, .role = Role::output};
  Problem problem = counted(
      e, 2 * heads.key_value,
      {.operands = {out, {.dtype = dtype, .shape = {e.tokens, first + columns}}},
       .launch = [first, columns](const Operands& v, Stream stream) {
         run(CopyColumns{.out = v[0], .in = v[1], .in_first = first, .columns = columns}, stream);
       }});
  problem.bytes = 2 * static_cast<double>(out.bytes());
  return problem;
}

}  // namespace

void add_query_key_value_cases(std::vector<Case>& cases) {
  const auto add = [&](const char* op, const char* variant, auto make) {
    cases.push_back({.op = op,
                     .variant = variant,
                     .dtypes = model_dtypes(),
                     .make = make,
                     .goal = {.of_copy = 0.80}});
  };
  add("rotary", "forward", rotary);
  add("query_key_norm", "forward", norm_forward);
  add("query_key_norm", "backward", norm_backward);
  add("head_order", "forward", head_order);
  add("copy_columns", "forward", copy_columns);
}

}  // namespace sluice::bench
