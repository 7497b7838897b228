#include <fmt/format.h>

#include "bench/kernels/case.h"
#include "kernels/attention.h"
#include "kernels/base/run.h"
#include "kernels/base/runtime.h"

namespace sluice::bench {
namespace {

DropoutMask mask_of(float probability) {
  return {.key = 0x5157A11CE, .probability = probability, .first_sample = 0};
}

/// FlashAttention's count: two products of T x T x d per head, halved by causality.
double forward_flops(const Extent& e) {
  const auto t = static_cast<double>(e.positions);
  return 4 * t * t * static_cast<double>(e.width) * static_cast<double>(e.sequences()) / 2;
}

std::string dimensions_of(const Extent& e, const AttentionHeads& heads) {
  const std::string of_both = heads.group() > 1 ? fmt::format("{}/{}", heads.query, heads.key_value)
                                                : std::to_string(heads.query);
  return fmt::format("{}x{}x{}x{}", e.sequences(), of_both, e.positions, e.width / e.heads);
}

/// The extent with heads as wide as GPT-J's, as many as the width has room for.
Extent with_wide_heads(Extent e) {
  constexpr std::int64_t head_width = 256;
  e.heads = e.width / head_width;
  e.width = e.heads * head_width;
  return e;
}

AttentionHeads all_heads(const Extent& e) {
  return static_cast<int>(e.heads);
}
AttentionHeads shared_heads(const Extent& e) {
  return {static_cast<int>(e.heads), static_cast<int>(e.key_value_heads())};
}

Operand rows(const Extent& e, DType dtype, Role role) {
  return {.dtype = dtype, .shape = {e.sequences(), e.positions, e.width}, .role = role};
}
Operand qkv_rows(const Extent& e, DType dtype, const AttentionHeads& heads, Role role) {
  const std::int64_t width = heads.in_row() * (e.width / e.heads);
  return {.dtype = dtype, .shape = {e.sequences(), e.positions, width}, .role = role};
}
Operand sums(const Extent& e, DType dtype, Role role) {
  return {
      .dtype = accumulator_of(dtype), .shape = {e.sequences(), e.heads, e.positions}, .role = role};
}

Problem forward(const Extent& e, DType dtype, const AttentionHeads& heads, float probability = 0,
                bool wgmma = false) {
  Problem problem{.dimensions = dimensions_of(e, heads),
                  .operands = {rows(e, dtype, Role::output), sums(e, dtype, Role::output),
                               qkv_rows(e, dtype, heads, Role::input)},
                  .launch =
                      [=](const Operands& v, Stream stream) {
                        run(AttentionForward{.out = v[0],
                                             .log_sum_exp = v[1],
                                             .qkv = v[2],
                                             .heads = heads,
                                             .mask = mask_of(probability),
                                             .wgmma = wgmma},
                            stream);
                      },
                  .flops = forward_flops(e)};
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

Problem backward(const Extent& e, DType dtype, const AttentionHeads& heads, float probability = 0) {
  Problem problem{.dimensions = dimensions_of(e, heads),
                  .operands = {qkv_rows(e, dtype, heads, Role::output), rows(e, dtype, Role::input),
                               rows(e, dtype, Role::derived), sums(e, dtype, Role::derived),
                               qkv_rows(e, dtype, heads, Role::input)},
                  .launch =
                      [=](const Operands& v, Stream stream) {
                        run(AttentionBackward{.grad_qkv = v[0],
                                              .grad_out = v[1],
                                              .out = v[2],
                                              .log_sum_exp = v[3],
                                              .qkv = v[4],
                                              .heads = heads,
                                              .mask = mask_of(probability)},
                            stream);
                      },
                  .flops = 2.5 * forward_flops(e),
                  .prepare =
                      [=](const Operands& v, Stream stream) {
                        run(AttentionForward{.out = v[2],
                                             .log_sum_exp = v[3],
                                             .qkv = v[4],
                                             .heads = heads,
                                             .mask = mask_of(probability)},
                            stream);
                      }};
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

/// One new token per sequence at the end of a full cache.
Problem cached_token(const Extent& e, DType dtype) {
  constexpr std::int64_t sequences = 8;
  const Operand cache{
      .dtype = dtype, .shape = {sequences, e.positions, e.width}, .role = Role::updated};
  Problem problem{
      .dimensions = fmt::format("{}x{}x{}", sequences, e.positions, e.width),
      .operands = {{.dtype = dtype, .shape = {sequences, 1, e.width}, .role = Role::output},
                   cache,
                   cache,
                   {.dtype = dtype, .shape = {sequences, 1, 3 * e.width}}},
      .launch =
          [heads = static_cast<int>(e.heads), start = e.positions - 1](const Operands& v,
                                                                       Stream stream) {
            run(CachedAttention{.out = v[0],
                                .key_cache = v[1],
                                .value_cache = v[2],
                                .qkv = v[3],
                                .start = start,
                                .heads = heads},
                stream);
          },
      .flops = 4.0 * static_cast<double>(sequences * e.positions * e.width)};
  // The caches are read, and one row of each is written.
  problem.bytes =
      bytes_of(problem.operands) - 2 * static_cast<double>(cache.bytes()) +
      2.0 * static_cast<double>(sequences * e.width) * static_cast<double>(size_of(dtype));
  return problem;
}

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  struct Form {
    const char* suffix;
    std::function<Problem(const Extent&, DType)> forward, backward;
    bool has_goal = false;
  };
  const Form forms[] = {
      {"", [](const Extent& e, DType d) { return forward(e, d, all_heads(e)); },
       [](const Extent& e, DType d) { return backward(e, d, all_heads(e)); }, true},
      {"_dropout", [](const Extent& e, DType d) { return forward(e, d, all_heads(e), 0.1f); },
       [](const Extent& e, DType d) { return backward(e, d, all_heads(e), 0.1f); }},
      {"_grouped", [](const Extent& e, DType d) { return forward(e, d, shared_heads(e)); },
       [](const Extent& e, DType d) { return backward(e, d, shared_heads(e)); }},
      {"_wide",
       [](const Extent& e, DType d) {
         const Extent wide = with_wide_heads(e);
         return forward(wide, d, all_heads(wide));
       },
       [](const Extent& e, DType d) {
         const Extent wide = with_wide_heads(e);
         return backward(wide, d, all_heads(wide));
       }}};
  for (const Form& form : forms) {
    cases.push_back({.op = "attention",
                     .variant = std::string("forward") + form.suffix,
                     .dtypes = model_dtypes(),
                     .ceiling = Ceiling::gemm,
                     .make = form.forward,
                     .goal = {.tflop_per_s = form.has_goal ? 200.0 : 0.0},
                     .least_checked_tokens = 64});
    cases.push_back({.op = "attention",
                     .variant = std::string("backward") + form.suffix,
                     .dtypes = model_dtypes(),
                     .ceiling = Ceiling::gemm,
                     .make = form.backward,
                     .goal = {.tflop_per_s = form.has_goal ? 150.0 : 0.0},
                     .error_factor = 2,
                     .least_checked_tokens = 64});
  }
  // Other devices would measure the first case again.
  if (cuda_devices() > 0 && make_cuda_runtime(0)->info().wgmma_attention)
    cases.push_back(
        {.op = "attention",
         .variant = "forward_tma",
         .dtypes = {DType::bf16, DType::f16},
         .ceiling = Ceiling::gemm,
         .make = [](const Extent& e, DType d) { return forward(e, d, all_heads(e), 0, true); },
         .goal = {.tflop_per_s = 265.0},
         .least_checked_tokens = 64});
  cases.push_back({.op = "cached_attention",
                   .variant = "token",
                   .dtypes = model_dtypes(),
                   .make = cached_token});
}

}  // namespace sluice::bench
