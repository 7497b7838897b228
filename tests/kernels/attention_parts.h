#pragma once

#include "kernels/attention.h"
#include "kernels/base/run.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

// Attention with dropout, its heads divided between ranks: the ranks' results side by side equal,
// bit for bit, those of one rank that has all heads.

namespace sluice::test {

struct HeadSizes {
  std::int64_t batch, length, heads, head_width;
};

/// Selects `count` heads from `first` on from values of shape [outer, heads, inner].
inline Values heads_of(const Values& values, std::int64_t heads, std::int64_t inner,
                       std::int64_t first, std::int64_t count) {
  Values result;
  for (auto at = values.begin(); at != values.end(); at += heads * inner)
    result.insert(result.end(), at + first * inner, at + (first + count) * inner);
  return result;
}

struct AttendedHeads {
  Values out, log_sum_exp, grad_qkv;
};

/// Computes `count` heads from `first` on. `place` makes the arrays and gives the ops' stream.
template <class Place>
AttendedHeads attend_heads(Place& place, DType dtype, const HeadSizes& s, std::int64_t first,
                           std::int64_t count) {
  const DropoutMask mask{.key = 0xFEDCBA9876543210, .probability = 0.3f, .first_sample = 7};
  const std::int64_t rows = s.batch * s.length, width = s.heads * s.head_width;
  const std::int64_t channels = count * s.head_width;
  auto qkv = place.array(dtype, heads_of(random_values(rows * 3 * width, 1, 1.5), s.heads,
                                         s.head_width, first, count));
  auto grad_out = place.array(
      dtype, heads_of(random_values(rows * width, 2), s.heads, s.head_width, first, count));
  const auto results = [&](DType type, std::int64_t size) {
    return place.array(type, Values(static_cast<std::size_t>(size), NAN));
  };
  auto out = results(dtype, rows * channels);
  auto log_sum_exp = results(accumulator_of(dtype), s.batch * count * s.length);
  auto grad_qkv = results(dtype, rows * 3 * channels);
  run(AttentionForward{.out = out.view({s.batch, s.length, channels}),
                       .log_sum_exp = log_sum_exp.view({s.batch, count, s.length}),
                       .qkv = qkv.view({s.batch, s.length, 3 * channels}),
                       .heads = static_cast<int>(count),
                       .mask = mask,
                       .first_head = static_cast<int>(first)},
      place.stream());
  run(AttentionBackward{.grad_qkv = grad_qkv.view({s.batch, s.length, 3 * channels}),
                        .grad_out = grad_out.view({s.batch, s.length, channels}),
                        .out = out.view({s.batch, s.length, channels}),
                        .log_sum_exp = log_sum_exp.view({s.batch, count, s.length}),
                        .qkv = qkv.view({s.batch, s.length, 3 * channels}),
                        .heads = static_cast<int>(count),
                        .mask = mask,
                        .first_head = static_cast<int>(first)},
      place.stream());
  place.finish();
  return {out.values(), log_sum_exp.values(), grad_qkv.values()};
}

/// Divides five heads into two and three.
template <class Place>
void check_parts_of_heads(Place& place, DType dtype, std::int64_t head_width) {
  const HeadSizes s{2, 70, 5, head_width};
  CAPTURE(name_of(dtype), head_width);
  const AttendedHeads whole = attend_heads(place, dtype, s, 0, s.heads);
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 2}, {2, 3}}) {
    CAPTURE(first);
    const AttendedHeads part = attend_heads(place, dtype, s, first, count);
    CHECK(part.out == heads_of(whole.out, s.heads, head_width, first, count));
    CHECK(part.log_sum_exp == heads_of(whole.log_sum_exp, s.heads, s.length, first, count));
    CHECK(part.grad_qkv == heads_of(whole.grad_qkv, s.heads, head_width, first, count));
  }
}

}  // namespace sluice::test
