#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

// Grouped-query attention is multi-head attention in which every head of k and v is there once for
// each query head of its group. attention_test.cpp checks the latter against its definition.

namespace sluice::test::grouped_attention_test {
namespace {

struct Sizes {
  std::int64_t batch, length;
  int heads, key_value_heads;
  std::int64_t head_width;

  std::int64_t rows() const { return batch * length; }
};

struct Attended {
  Values out, log_sum_exp, grad_qkv;
};

Attended attend(const Sizes& s, const AttentionHeads& heads, DType dtype, const Values& values,
                const DropoutMask& mask) {
  const std::int64_t width = heads.query * s.head_width, columns = heads.in_row() * s.head_width;
  Array qkv(dtype, values), out(dtype, s.rows() * width), grad_qkv(dtype, s.rows() * columns);
  Array grad_out(dtype, random_values(s.rows() * width, 99));
  Array log_sum_exp(accumulator_of(dtype), s.batch * heads.query * s.length);
  const View lse = log_sum_exp.view({s.batch, heads.query, s.length});
  launch_cpu(AttentionForward{.out = out.view({s.batch, s.length, width}),
                              .log_sum_exp = lse,
                              .qkv = qkv.view({s.batch, s.length, columns}),
                              .heads = heads,
                              .mask = mask});
  launch_cpu(AttentionBackward{.grad_qkv = grad_qkv.view({s.batch, s.length, columns}),
                               .grad_out = grad_out.view({s.batch, s.length, width}),
                               .out = out.view({s.batch, s.length, width}),
                               .log_sum_exp = lse,
                               .qkv = qkv.view({s.batch, s.length, columns}),
                               .heads = heads,
                               .mask = mask});
  return {out.values(), log_sum_exp.values(), grad_qkv.values()};
}

/// For each element of a row of multi-head attention, the element that it has in a grouped row.
std::vector<std::size_t> places(const Sizes& s) {
  std::vector<std::size_t> all;
  const auto depth = static_cast<std::size_t>(s.head_width);
  for (int part = 0; part < 3; ++part)
    for (int head = 0; head < s.heads; ++head) {
      const int shared = head / (s.heads / s.key_value_heads);
      const int at = part == 0 ? head : s.heads + (part - 1) * s.key_value_heads + shared;
      for (std::size_t d = 0; d < depth; ++d)
        all.push_back(static_cast<std::size_t>(at) * depth + d);
    }
  return all;
}

constexpr Sizes all_sizes[] = {{1, 1, 2, 1, 1},    {2, 7, 6, 2, 5},   {1, 65, 4, 4, 16},
                               {2, 130, 3, 1, 64}, {1, 64, 8, 2, 33}, {1, 200, 4, 2, 80}};
constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

TEST_CASE("heads of k and v that query heads share are as if each had its own", "[attention]") {
  for (const DType dtype : dtypes)
    for (const auto& s : all_sizes)
      for (const float probability : {0.0f, 0.3f}) {
        CAPTURE(name_of(dtype), s.batch, s.length, s.heads, s.key_value_heads, s.head_width,
                probability);
        const DropoutMask mask{.key = 5, .probability = probability, .first_sample = 3};
        const AttentionHeads grouped_heads(s.heads, s.key_value_heads);
        const auto columns = static_cast<std::size_t>(grouped_heads.in_row() * s.head_width);
        Array rounded(dtype, random_values(s.rows() * static_cast<std::int64_t>(columns), 1, 1.5));
        const Values values = rounded.values();
        const auto from = places(s);
        Values repeated;
        for (std::size_t row = 0; row < static_cast<std::size_t>(s.rows()); ++row)
          for (const std::size_t column : from)
            repeated.push_back(values[row * columns + column]);
        const Attended grouped = attend(s, grouped_heads, dtype, values, mask);
        const Attended whole = attend(s, s.heads, dtype, repeated, mask);
        CHECK(grouped.out == whole.out);
        CHECK(grouped.log_sum_exp == whole.log_sum_exp);
        Values sums(grouped.grad_qkv.size());
        for (std::size_t i = 0; i < whole.grad_qkv.size(); ++i)
          sums[i / from.size() * columns + from[i % from.size()]] += whole.grad_qkv[i];
        CHECK(relative_l2(grouped.grad_qkv, sums) <= 2 * tolerance_of(dtype));
      }
}

TEST_CASE("shared heads of k and v attend over a cache as in the full attention", "[attention]") {
  const ThreadCount one_thread(1);
  for (const DType dtype : dtypes)
    for (const auto& s : all_sizes) {
      CAPTURE(name_of(dtype), s.length, s.heads, s.key_value_heads, s.head_width);
      const AttentionHeads heads(s.heads, s.key_value_heads);
      const std::int64_t width = s.heads * s.head_width, columns = heads.in_row() * s.head_width;
      const std::int64_t cached = s.key_value_heads * s.head_width, capacity = s.length + 2;
      Array rounded(dtype, random_values(s.rows() * columns, 1, 1.5));
      const Values values = rounded.values();
      const Attended full = attend(s, heads, dtype, values, {});
      Array keys(dtype, s.batch * capacity * cached), stored(dtype, s.batch * capacity * cached);
      Values actual(full.out.size());
      for (std::int64_t at = 0; at < s.length; ++at) {
        Values input;
        for (std::int64_t b = 0; b < s.batch; ++b) {
          const auto row = values.begin() + (b * s.length + at) * columns;
          input.insert(input.end(), row, row + columns);
        }
        Array chunk(dtype, input), out(dtype, s.batch * width);
        launch_cpu(CachedAttention{.out = out.view({s.batch, 1, width}),
                                   .key_cache = keys.view({s.batch, capacity, cached}),
                                   .value_cache = stored.view({s.batch, capacity, cached}),
                                   .qkv = chunk.view({s.batch, 1, columns}),
                                   .start = at,
                                   .heads = heads});
        const Values result = out.values();
        for (std::int64_t b = 0; b < s.batch; ++b)
          std::copy_n(result.begin() + b * width, width,
                      actual.begin() + (b * s.length + at) * width);
      }
      CHECK(relative_l2(actual, full.out) <= tolerance_of(dtype));
      CHECK(std::isnan(keys.values().back()));
    }
}

TEST_CASE("the bits of grouped attention do not depend on threads", "[attention]") {
  const Sizes s{2, 130, 6, 2, 32};
  CHECK(same_with_any_threads([&] {
    const Values values = random_values(s.rows() * 10 * s.head_width, 1);
    const Attended attended =
        attend(s, {6, 2}, DType::bf16, values, {.key = 3, .probability = 0.2f});
    return std::array{attended.out, attended.log_sum_exp, attended.grad_qkv};
  }));
}

}  // namespace
}  // namespace sluice::test::grouped_attention_test
