#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/philox.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::attention_test {
namespace {

struct Sizes {
  std::int64_t batch, length;
  int heads;
  std::int64_t head_width;

  std::int64_t width() const { return heads * head_width; }
  std::int64_t rows() const { return batch * length; }
};

struct Reference {
  Values out, log_sum_exp, grad_qkv;
};

/// Computes by definition, one query at a time; keep[b, h, i, j] (if any) scales the probabilities.
Reference attend(const Sizes& s, const Values& qkv, const Values& grad_out,
                 const Values& keep = {}) {
  const auto width = static_cast<std::size_t>(s.width());
  const auto length = static_cast<std::size_t>(s.length);
  const auto depth = static_cast<std::size_t>(s.head_width);
  const auto heads = static_cast<std::size_t>(s.heads);
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_width));
  Reference result{Values(static_cast<std::size_t>(s.rows()) * width),
                   Values(static_cast<std::size_t>(s.batch) * heads * length), Values(qkv.size())};
  for (std::size_t bh = 0; bh < static_cast<std::size_t>(s.batch) * heads; ++bh) {
    const std::size_t b = bh / heads, h = bh % heads;
    const auto at = [&](std::size_t position, std::size_t part) {
      return ((b * length + position) * 3 + part) * width + h * depth;
    };
    for (std::size_t i = 0; i < length; ++i) {
      Values p(i + 1), weight(i + 1, 1.0), dropped(i + 1);
      double highest = -INFINITY, sum = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        for (std::size_t d = 0; d < depth; ++d)
          p[j] += qkv[at(i, 0) + d] * qkv[at(j, 1) + d];
        highest = std::max(highest, p[j] *= scale);
        if (!keep.empty()) weight[j] = keep[(bh * length + i) * length + j];
      }
      for (auto& score : p)
        sum += score = std::exp(score - highest);
      for (auto& score : p)
        score /= sum;
      result.log_sum_exp[bh * length + i] = highest + std::log(sum);
      const std::size_t row = (b * length + i) * width + h * depth;
      double dot = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        for (std::size_t d = 0; d < depth; ++d) {
          result.out[row + d] += p[j] * weight[j] * qkv[at(j, 2) + d];
          dropped[j] += grad_out[row + d] * qkv[at(j, 2) + d] * weight[j];
          result.grad_qkv[at(j, 2) + d] += p[j] * weight[j] * grad_out[row + d];
        }
        dot += p[j] * dropped[j];
      }
      for (std::size_t j = 0; j <= i; ++j) {
        const double grad_score = p[j] * (dropped[j] - dot) * scale;
        for (std::size_t d = 0; d < depth; ++d) {
          result.grad_qkv[at(i, 0) + d] += grad_score * qkv[at(j, 1) + d];
          result.grad_qkv[at(j, 1) + d] += grad_score * qkv[at(i, 0) + d];
        }
      }
    }
  }
  return result;
}

struct Attention {
  Sizes s;
  Array qkv, grad_out, out, log_sum_exp, grad_qkv;

  Attention(const Sizes& sizes, DType dtype, const Values& values)
      : s(sizes),
        qkv(dtype, values),
        grad_out(dtype, random_values(s.rows() * s.width(), 99)),
        out(dtype, s.rows() * s.width()),
        log_sum_exp(accumulator_of(dtype), s.batch * s.heads * s.length),
        grad_qkv(dtype, s.rows() * 3 * s.width()) {}
  Attention(const Sizes& sizes, DType dtype, double scale = 1)
      : Attention(sizes, dtype, random_values(sizes.rows() * 3 * sizes.width(), 1, scale)) {}

  View as(Array& array, std::int64_t columns) { return array.view({s.batch, s.length, columns}); }
  View lse() { return log_sum_exp.view({s.batch, s.heads, s.length}); }
  void forward(const DropoutMask& mask = {}) {
    launch_cpu(AttentionForward{.out = as(out, s.width()),
                                .log_sum_exp = lse(),
                                .qkv = as(qkv, 3 * s.width()),
                                .heads = s.heads,
                                .mask = mask});
  }
  void backward(const DropoutMask& mask = {}) {
    launch_cpu(AttentionBackward{.grad_qkv = as(grad_qkv, 3 * s.width()),
                                 .grad_out = as(grad_out, s.width()),
                                 .out = as(out, s.width()),
                                 .log_sum_exp = lse(),
                                 .qkv = as(qkv, 3 * s.width()),
                                 .heads = s.heads,
                                 .mask = mask});
  }
  Reference reference(const Values& keep = {}) const {
    return attend(s, qkv.values(), grad_out.values(), keep);
  }
};

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
const Sizes all_sizes[] = {{1, 1, 1, 1},   {2, 7, 3, 5},    {1, 64, 2, 16}, {2, 65, 1, 64},
                           {1, 63, 3, 33}, {1, 130, 2, 80}, {3, 129, 1, 1}, {1, 200, 1, 128}};

/// Backward reads `out` as it was rounded, so its error is a little above that of one store.
double backward_tolerance(DType dtype) {
  return 2 * tolerance_of(dtype);
}

TEST_CASE("attention agrees with its definition", "[attention]") {
  for (const DType dtype : dtypes) {
    for (const auto& s : all_sizes) {
      CAPTURE(name_of(dtype), s.batch, s.length, s.heads, s.head_width);
      Attention attention(s, dtype, 1.5);
      attention.forward();
      attention.backward();
      const auto expected = attention.reference();
      CHECK(relative_l2(attention.out.values(), expected.out) <= tolerance_of(dtype));
      CHECK(relative_l2(attention.log_sum_exp.values(), expected.log_sum_exp) <=
            tolerance_of(accumulator_of(dtype)));
      CHECK(relative_l2(attention.grad_qkv.values(), expected.grad_qkv) <=
            backward_tolerance(dtype));
    }
  }
}

TEST_CASE("attention is stable for large scores", "[attention]") {
  for (const DType dtype : dtypes) {
    CAPTURE(name_of(dtype));
    const Sizes s{1, 70, 2, 16};
    // Scores of some hundreds: exp alone would overflow.
    Values values = random_values(s.rows() * 3 * s.width(), 5);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (i / static_cast<std::size_t>(s.width()) % 3 == 0) values[i] *= 150;
    Attention attention(s, dtype, values);
    attention.forward();
    attention.backward();
    const auto expected = attention.reference();
    const double slack =
        dtype == DType::f64 ? 100 : 10;  // scores carry the round-off of their size
    CHECK(relative_l2(attention.out.values(), expected.out) <= slack * tolerance_of(dtype));
    CHECK(relative_l2(attention.grad_qkv.values(), expected.grad_qkv) <=
          slack * backward_tolerance(dtype));

    // Every q and k is 50 and every v the same: uniform weights, whatever the scores' size.
    Attention equal(s, dtype, Values(static_cast<std::size_t>(s.rows() * 3 * s.width()), 50));
    equal.forward();
    CHECK(relative_l2(equal.out.values(),
                      Values(static_cast<std::size_t>(s.rows() * s.width()), 50)) <= 1e-5);
    // Large negative scores must not underflow to 0/0.
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = i / static_cast<std::size_t>(s.width()) % 3 == 0 ? -50 : 50;
    Attention negative(s, dtype, values);
    negative.forward();
    negative.backward();
    CHECK(relative_l2(negative.out.values(),
                      Values(static_cast<std::size_t>(s.rows() * s.width()), 50)) <= 1e-5);
    for (const double gradient : negative.grad_qkv.values())
      REQUIRE(std::isfinite(gradient));
  }
}

TEST_CASE("a position sees nothing after it", "[attention]") {
  const Sizes s{1, 100, 2, 16};
  Attention attention(s, DType::f32);
  attention.forward();
  const Values before = attention.out.values();
  Values values = attention.qkv.values();
  const std::size_t cut = 71, row = 3 * static_cast<std::size_t>(s.width());
  for (std::size_t i = cut * row; i < values.size(); ++i)
    values[i] = 1e4;
  Attention other_future(s, DType::f32, values);
  other_future.forward();
  const Values after = other_future.out.values();
  for (std::size_t i = 0; i < cut * row / 3; ++i)
    REQUIRE(after[i] == before[i]);
}

TEST_CASE("the bits of attention do not depend on threads", "[attention]") {
  for (const DType dtype : dtypes) {
    for (const auto& s : {Sizes{2, 7, 3, 5}, Sizes{2, 130, 2, 64}}) {
      CAPTURE(name_of(dtype), s.length);
      CHECK(same_with_any_threads([&] {
        const DropoutMask mask{.key = 3, .probability = 0.2f};
        Attention attention(s, dtype);
        attention.forward(mask);
        attention.backward(mask);
        return std::array{attention.out.bytes(), attention.log_sum_exp.bytes(),
                          attention.grad_qkv.bytes()};
      }));
    }
  }
}

/// Reads the mask off the results: with the unit vectors as values, out[i, j] is the probability
/// of j times 1/(1-p) or 0. Needs head width >= length.
Values observed_mask(const Sizes& s, const DropoutMask& mask) {
  const auto width = static_cast<std::size_t>(s.width());
  const auto length = static_cast<std::size_t>(s.length);
  const auto depth = static_cast<std::size_t>(s.head_width);
  Values values = random_values(s.rows() * 3 * s.width(), 4, 0.5);
  for (std::size_t row = 0; row < static_cast<std::size_t>(s.rows()); ++row)
    for (std::size_t c = 0; c < width; ++c)
      values[(row * 3 + 2) * width + c] = c % depth == row % length ? 1 : 0;
  Attention plain(s, DType::f64, values), dropped(s, DType::f64, values);
  plain.forward();
  dropped.forward(mask);
  const Values p = plain.out.values(), q = dropped.out.values();
  const auto heads = static_cast<std::size_t>(s.heads);
  Values keep(static_cast<std::size_t>(s.batch) * heads * length * length);
  for (std::size_t bh = 0; bh < static_cast<std::size_t>(s.batch) * heads; ++bh)
    for (std::size_t i = 0; i < length; ++i)
      for (std::size_t j = 0; j <= i; ++j) {
        const std::size_t at = ((bh / heads) * length + i) * width + bh % heads * depth + j;
        keep[(bh * length + i) * length + j] = q[at] / p[at];
      }
  return keep;
}

TEST_CASE("attention drops the scores that Philox says, of keys far apart too", "[attention]") {
  // More keys than a tile has, and more than two.
  const Sizes s{2, 150, 2, 152};
  const DropoutMask mask{.key = 0x123456789ABCDEF0, .probability = 0.4f, .first_sample = 9};
  const Values keep = observed_mask(s, mask);
  const std::uint32_t least = 1717986944;  // 0.4 as an fp32 number, times 2^32
  std::size_t wrong = 0, at = 0;
  for (std::uint64_t b = 0; b < 2; ++b)
    for (std::uint64_t h = 0; h < 2; ++h)
      for (std::uint64_t query = 0; query < 150; ++query)
        for (std::uint64_t key = 0; key < 150; ++key, ++at) {
          if (key > query) continue;
          const std::uint64_t counter = (key / 4) | (h * 150 + query) << 24;
          const bool kept = philox(mask.key, counter, 9 + b)[key % 4] >= least;
          wrong += kept != (keep[at] != 0) ? 1 : 0;
        }
  CHECK(wrong == 0);
}

TEST_CASE("attention dropout keeps what the probability says and scales it up", "[attention]") {
  const Sizes s{3, 100, 2, 128};
  for (const float probability : {0.1f, 0.5f}) {
    const Values keep = observed_mask(s, {.key = 17, .probability = probability});
    const double scale = 1 / (1 - static_cast<double>(probability));
    double kept = 0, count = 0;
    for (std::size_t at = 0; at < keep.size(); ++at) {
      const std::size_t i = at / 100 % 100, j = at % 100;
      if (j > i) continue;
      ++count;
      if (keep[at] == 0) continue;
      ++kept;
      if (std::abs(keep[at] - scale) > 1e-6) FAIL("weight " << keep[at] << " for " << scale);
    }
    // Four standard deviations of a binomial; kept * scale is then the expectation as well.
    const double p = static_cast<double>(probability);
    CHECK(std::abs(kept / count - (1 - p)) < 4 * std::sqrt(p * (1 - p) / count));
    // Heads and samples draw apart: two masks agree as often as independent ones do.
    for (const std::size_t other : {1u, 2u, 5u}) {
      double agree = 0, pairs = 0;
      for (std::size_t at = 0; at < 100 * 100; ++at) {
        if (at % 100 > at / 100) continue;
        ++pairs;
        agree += (keep[at] == 0) == (keep[other * 100 * 100 + at] == 0) ? 1 : 0;
      }
      const double chance = p * p + (1 - p) * (1 - p);
      CHECK(std::abs(agree / pairs - chance) < 4 * std::sqrt(chance * (1 - chance) / pairs));
    }
  }
}

TEST_CASE("attention with dropout agrees with its definition", "[attention]") {
  const Sizes s{2, 70, 2, 72};
  const DropoutMask mask{.key = 5, .probability = 0.3f, .first_sample = 11};
  const Values keep = observed_mask(s, mask);
  for (const DType dtype : dtypes) {
    CAPTURE(name_of(dtype));
    Attention attention(s, dtype);
    attention.forward(mask);
    attention.backward(mask);
    const auto expected = attention.reference(keep);
    // The scale 1/(1-p) is an fp32 number, also for f64.
    const double tolerance = std::max(tolerance_of(dtype), 1e-7);
    CHECK(relative_l2(attention.out.values(), expected.out) <= tolerance);
    CHECK(relative_l2(attention.grad_qkv.values(), expected.grad_qkv) <= 2 * tolerance);
  }
}

TEST_CASE("the mask of a sample does not depend on the batch around it", "[attention]") {
  const Sizes batch{4, 66, 2, 8}, alone{1, 66, 2, 8};
  const DropoutMask mask{.key = 5, .probability = 0.3f, .first_sample = 20};
  Attention together(batch, DType::f32);
  together.forward(mask);
  together.backward(mask);
  const Values qkv = together.qkv.values(), out = together.out.values();
  const Values grad_out = together.grad_out.values(), grad = together.grad_qkv.values();
  const auto part = [](const Values& values, std::ptrdiff_t b) {
    const auto size = static_cast<std::ptrdiff_t>(values.size()) / 4;
    return Values(values.begin() + b * size, values.begin() + (b + 1) * size);
  };
  for (std::ptrdiff_t b = 0; b < 4; ++b) {
    Attention single(alone, DType::f32, part(qkv, b));
    single.grad_out.set(part(grad_out, b));
    DropoutMask moved = mask;
    moved.first_sample += b;
    single.forward(moved);
    single.backward(moved);
    CHECK(single.out.values() == part(out, b));
    CHECK(single.grad_qkv.values() == part(grad, b));
    moved.first_sample += 1;
    single.forward(moved);
    CHECK(single.out.values() != part(out, b));
  }
}

TEST_CASE("cached attention gives the rows of the full attention", "[attention]") {
  // Thousands of launches with almost no work: parallel regions would be all of the time.
  const ThreadCount one_thread(1);
  for (const DType dtype : dtypes) {
    for (const auto& s : {Sizes{2, 9, 3, 5}, Sizes{1, 131, 2, 64}, Sizes{3, 70, 1, 33}}) {
      for (const std::int64_t prompt : {std::int64_t{1}, std::int64_t{6}, s.length}) {
        CAPTURE(name_of(dtype), s.length, s.head_width, prompt);
        Attention full(s, dtype, 1.5);
        full.forward();
        const Values qkv = full.qkv.values(), expected = full.out.values();
        const std::int64_t capacity = s.length + 4, width = s.width();
        Array keys(dtype, s.batch * capacity * width), values(dtype, s.batch * capacity * width);
        Values actual(expected.size());
        for (std::int64_t start = 0; start < s.length;) {
          const std::int64_t count = start == 0 ? prompt : 1;
          // Rows start .. start + count of every sample, moved between the two layouts.
          const auto each = [&](std::int64_t columns, auto&& move) {
            for (std::int64_t b = 0; b < s.batch; ++b)
              for (std::int64_t i = 0; i < count * columns; ++i)
                move(static_cast<std::size_t>((b * s.length + start) * columns + i),
                     static_cast<std::size_t>(b * count * columns + i));
          };
          Values input(static_cast<std::size_t>(s.batch * count * 3 * width));
          each(3 * width, [&](std::size_t whole, std::size_t part) { input[part] = qkv[whole]; });
          Array chunk(dtype, input), out(dtype, s.batch * count * width);
          launch_cpu(CachedAttention{.out = out.view({s.batch, count, width}),
                                     .key_cache = keys.view({s.batch, capacity, width}),
                                     .value_cache = values.view({s.batch, capacity, width}),
                                     .qkv = chunk.view({s.batch, count, 3 * width}),
                                     .start = start,
                                     .heads = s.heads});
          const Values result = out.values();
          each(width, [&](std::size_t whole, std::size_t part) { actual[whole] = result[part]; });
          start += count;
        }
        CHECK(relative_l2(actual, expected) <= tolerance_of(dtype));
        CHECK(relative_l2(actual, full.reference().out) <= tolerance_of(dtype));
        const Values cache = keys.values();
        CHECK(cache[0] == qkv[static_cast<std::size_t>(width)]);
        CHECK(std::isnan(cache.back()));  // beyond the last position nothing was written
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test::attention_test
