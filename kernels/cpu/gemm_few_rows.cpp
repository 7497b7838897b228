#include "kernels/cpu/gemm_few_rows.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <vector>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice::cpu {
namespace {

constexpr std::int64_t most_rows = 8;
/// Bytes of b that are worth a task.
constexpr std::int64_t task_bytes = 1 << 18;
/// Parts of k whose sums are kept apart: more would cost more to add up than they balance.
constexpr std::int64_t most_parts = 16;
/// Rows of b that are read at the same time. They lie apart, so that the next row of each goes on
/// where it has ended: a processor fetches ahead along long runs, not over jumps.
constexpr std::int64_t streams = 8;
/// Columns of them that stay in the first cache until all rows of a have met them.
constexpr std::int64_t block = 256;

float widen(float value) {
  return value;
}
float widen(BFloat16 value) {
  return static_cast<float>(value);
}
/// Without branches, so that loops over it become SIMD: the exponent is put right by a product,
/// which is exact for subnormal numbers too.
float widen(Half value) {
  const std::uint32_t magnitude = (value.bits & 0x7FFFu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t bits = magnitude >= 0x0F800000u ? magnitude | 0x7F800000u : finite;
  return std::bit_cast<float>(bits | (value.bits & 0x8000u) << 16);
}

/// sums += x w for as many rows of w as there are streams: element i of x is at i * step.
template <class In>
void add_streams(float* sums, const float* x, std::int64_t step, const In* w, std::int64_t ld,
                 std::int64_t columns) {
  static_assert(streams == 8);
  const In *w0 = w, *w1 = w + ld, *w2 = w + 2 * ld, *w3 = w + 3 * ld;
  const In *w4 = w + 4 * ld, *w5 = w + 5 * ld, *w6 = w + 6 * ld, *w7 = w + 7 * ld;
  const float x0 = x[0], x1 = x[step], x2 = x[2 * step], x3 = x[3 * step];
  const float x4 = x[4 * step], x5 = x[5 * step], x6 = x[6 * step], x7 = x[7 * step];
#pragma omp simd
  for (std::int64_t j = 0; j < columns; ++j) {
    float sum = sums[j];
    sum += x0 * widen(w0[j]);
    sum += x1 * widen(w1[j]);
    sum += x2 * widen(w2[j]);
    sum += x3 * widen(w3[j]);
    sum += x4 * widen(w4[j]);
    sum += x5 * widen(w5[j]);
    sum += x6 * widen(w6[j]);
    sum += x7 * widen(w7[j]);
    sums[j] = sum;
  }
}

/// The same for one row of w.
template <class In>
void add_row(float* sums, float x, const In* w, std::int64_t columns) {
#pragma omp simd
  for (std::int64_t j = 0; j < columns; ++j)
    sums[j] += x * widen(w[j]);
}

/// x w for four rows of w, to numbers that lie `step` apart.
template <class In>
void dot_four(float* out, std::int64_t step, const float* x, const In* w, std::int64_t ld,
              std::int64_t k) {
  const In *w0 = w, *w1 = w + ld, *w2 = w + 2 * ld, *w3 = w + 3 * ld;
  float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
  for (std::int64_t l = 0; l < k; ++l) {
    s0 += x[l] * widen(w0[l]);
    s1 += x[l] * widen(w1[l]);
    s2 += x[l] * widen(w2[l]);
    s3 += x[l] * widen(w3[l]);
  }
  out[0] = s0, out[step] = s1, out[2 * step] = s2, out[3 * step] = s3;
}

template <class In>
float dot_one(const float* x, const In* w, std::int64_t k) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t l = 0; l < k; ++l)
    sum += x[l] * widen(w[l]);
  return sum;
}

/// Bias, what was there before, and rounding: once.
template <class Out, class Bias>
void finish_row(Out* out, const float* sums, const Bias* bias, bool accumulate,
                std::int64_t columns) {
#pragma omp simd
  for (std::int64_t j = 0; j < columns; ++j) {
    float value = sums[j];
    if (bias != nullptr) value += static_cast<float>(static_cast<Accumulator<Bias>>(bias[j]));
    if (accumulate) value += static_cast<float>(out[j]);
    store(out[j], value);
  }
}

struct Size {
  std::int64_t m, n, k;
};

Size size_of_product(const Gemm& op) {
  return {op.out.dim(0), op.out.dim(1), op.transpose_a ? op.a.dim(0) : op.a.dim(1)};
}

/// Finished sums [m, end - begin], a row every `ld`, to columns [begin, end) of out.
template <class Out>
void finish(const Gemm& op, const float* sums, std::int64_t ld, std::int64_t begin,
            std::int64_t end) {
  dispatch_floating(op.bias ? op.bias.dtype : DType::f32, [&]<class Bias>() {
    const Bias* bias = op.bias ? op.bias.data<Bias>() + begin : nullptr;
    for (std::int64_t i = 0; i < op.out.dim(0); ++i)
      finish_row(op.out.data<Out>() + i * op.out.stride(0) + begin, sums + i * ld, bias,
                 op.accumulate, end - begin);
  });
}

/// a as f32 rows that follow one another.
template <class In>
const float* pack(const Gemm& op, Size size) {
  thread_local std::vector<float> packed;
  packed.resize(static_cast<std::size_t>(size.m * size.k));
  const In* a = op.a.data<In>();
  const std::int64_t row = op.transpose_a ? 1 : op.a.stride(0);
  const std::int64_t column = op.transpose_a ? op.a.stride(0) : 1;
  for (std::int64_t i = 0; i < size.m; ++i)
    for (std::int64_t l = 0; l < size.k; ++l)
      packed[static_cast<std::size_t>(i * size.k + l)] = widen(a[i * row + l * column]);
  return packed.data();
}

/// b: [n, k]. Every result is one sum along a row of b.
template <class In, class Out>
void multiply_transposed(const Gemm& op, Size size, const float* x) {
  const In* b = op.b.data<In>();
  const std::int64_t ldb = op.b.stride(0), k = size.k;
  const std::int64_t row_bytes = k * static_cast<std::int64_t>(sizeof(In));
  const std::int64_t grain = std::clamp<std::int64_t>(task_bytes / row_bytes / 4 * 4, 4, 1024);
  parallel_ranges(size.n, grain, [&](std::int64_t begin, std::int64_t end) {
    thread_local std::vector<float> all;
    const std::int64_t count = end - begin, each = count / 4;
    all.resize(static_cast<std::size_t>(size.m * count));
    for (std::int64_t j = 0; j < each; ++j)
      for (std::int64_t i = 0; i < size.m; ++i)
        dot_four(all.data() + i * count + j, each, x + i * k, b + (begin + j) * ldb, each * ldb, k);
    for (std::int64_t j = 4 * each; j < count; ++j)
      for (std::int64_t i = 0; i < size.m; ++i)
        all[static_cast<std::size_t>(i * count + j)] = dot_one(x + i * k, b + (begin + j) * ldb, k);
    finish<Out>(op, all.data(), count, begin, end);
  });
}

/// Adds x[., first to last) times those rows of b to `sums`, which has the sums of `block` columns
/// for all rows of a one after another, then those of the next block.
template <class In>
void add_rows(float* sums, const float* x, Size size, const In* b, std::int64_t ldb,
              std::int64_t first, std::int64_t last, std::int64_t columns) {
  const std::int64_t each = (last - first) / streams;
  for (std::int64_t l = first; l < first + each; ++l) {
    for (std::int64_t j = 0; j < columns; j += block) {
      const std::int64_t count = std::min(block, columns - j);
      const In* w = b + l * ldb + j;
      if (size.m == 1) {
        add_streams(sums + j, x + l, each, w, each * ldb, count);
        continue;
      }
      // Side by side the rows cannot drive each other out of the cache, and each is widened once.
      float near[streams * block];
      for (std::int64_t r = 0; r < streams; ++r) {
#pragma omp simd
        for (std::int64_t c = 0; c < count; ++c)
          near[r * block + c] = widen(w[r * each * ldb + c]);
      }
      for (std::int64_t i = 0; i < size.m; ++i)
        add_streams(sums + j * size.m + i * block, x + i * size.k + l, each, near, block, count);
    }
  }
  for (std::int64_t l = first + each * streams; l < last; ++l)
    for (std::int64_t j = 0; j < columns; j += block)
      for (std::int64_t i = 0; i < size.m; ++i)
        add_row(sums + j * size.m + i * block, x[i * size.k + l], b + l * ldb + j,
                std::min(block, columns - j));
}

/// b: [k, n]. Its rows are cut into parts, whose sums are added up at the end.
template <class In, class Out>
void multiply_plain(const Gemm& op, Size size, const float* x) {
  const std::int64_t bytes = size.k * size.n * static_cast<std::int64_t>(sizeof(In));
  // A power of two goes into that many threads without a rest.
  const auto wanted =
      std::bit_ceil(static_cast<std::uint64_t>((bytes + task_bytes - 1) / task_bytes));
  const std::int64_t parts = std::min(most_parts, static_cast<std::int64_t>(wanted));
  const std::int64_t rows = (size.k + parts - 1) / parts;
  const std::int64_t padded = (size.n + block - 1) / block * block;
  const std::int64_t part_size = size.m * padded;
  thread_local std::vector<float> kept;
  kept.resize(static_cast<std::size_t>(parts * part_size));
  float* const sums = kept.data();
  const In* b = op.b.data<In>();
  parallel_for(parts, [&](std::int64_t part) {
    float* const mine = sums + part * part_size;
    std::fill_n(mine, part_size, 0.0f);
    add_rows(mine, x, size, b, op.b.stride(0), std::min(size.k, part * rows),
             std::min(size.k, (part + 1) * rows), size.n);
  });
  for (std::int64_t part = 1; part < parts; ++part)
    add_row(sums, 1.0f, sums + part * part_size, part_size);
  for (std::int64_t j = 0; j < size.n; j += block)
    finish<Out>(op, sums + j * size.m, block, j, std::min(j + block, size.n));
}

}  // namespace

bool has_few_rows(const Gemm& op) {
  const Size size = size_of_product(op);
  return size.m > 0 && size.m <= most_rows && size.n > 0 && size.k > 0 && op.a.dtype != DType::f64;
}

void gemm_few_rows(const Gemm& op) {
  const Size size = size_of_product(op);
  dispatch_floating(op.a.dtype, [&]<class In>() {
    if constexpr (std::is_same_v<In, double>) {
      fail("a product of few rows is not for f64");
    } else {
      const float* x = pack<In>(op, size);
      const auto multiply = [&]<class Out>() {
        if (op.transpose_b)
          multiply_transposed<In, Out>(op, size, x);
        else
          multiply_plain<In, Out>(op, size, x);
      };
      if (op.out.dtype == op.a.dtype) return multiply.template operator()<In>();
      check(op.out.dtype == DType::f32, "a matrix product writes its operands' dtype or f32");
      multiply.template operator()<float>();
    }
  });
}

}  // namespace sluice::cpu
