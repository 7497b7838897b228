#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice::cpu {
namespace {

constexpr std::int64_t max_rows = 8;
/// Bytes of b per task; less is not worth a task.
constexpr std::int64_t task_bytes = 1 << 18;
/// Limit of separate parts of k: summing more of them would cost more than they balance.
constexpr std::int64_t max_parts = 16;
/// Rows of b that are read at the same time. They lie far apart, and the next row of each stream
/// begins where its last one ended, because a processor prefetches along long runs, not over jumps.
constexpr std::int64_t streams = 8;
/// Columns of these rows per block, meant to stay in the L1 cache for all rows of a.
constexpr std::int64_t block = 256;

float widen(float value) {
  return value;
}
float widen(BFloat16 value) {
  return static_cast<float>(value);
}
/// Widens without branches, so that loops vectorize: a product corrects the exponent, and it is
/// exact for subnormal numbers too.
float widen(Half value) {
  const std::uint32_t magnitude = (value.bits & 0x7FFFu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t bits = magnitude >= 0x0F800000u ? magnitude | 0x7F800000u : finite;
  return std::bit_cast<float>(bits | (value.bits & 0x8000u) << 16);
}

/// Two consecutive bf16. A mask and a shift widen a vector of both, whereas single numbers need a
/// shuffle and a shift per vector.
typedef std::uint32_t Pair __attribute__((may_alias));

float lower(Pair pair) {
  return std::bit_cast<float>(pair << 16);
}
float upper(Pair pair) {
  return std::bit_cast<float>(pair & 0xFFFF0000u);
}

/// True if rows of b can be read in pairs.
template <class In>
bool in_pairs(const Gemm& op, std::int64_t columns) {
  return std::is_same_v<In, BFloat16> && std::endian::native == std::endian::little &&
         columns % 2 == 0 && op.b.stride(0) % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(op.b.data<In>()) % alignof(Pair) == 0;
}

/// sums += x w for `streams` rows of w; element i of x is at i * step.
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

/// Same for pairs, whose first numbers go to one sum and whose second ones to another.
void add_streams(float* first, float* second, const float* x, std::int64_t step, const Pair* w,
                 std::int64_t ld, std::int64_t pairs) {
  const Pair *w0 = w, *w1 = w + ld, *w2 = w + 2 * ld, *w3 = w + 3 * ld;
  const Pair *w4 = w + 4 * ld, *w5 = w + 5 * ld, *w6 = w + 6 * ld, *w7 = w + 7 * ld;
  const float x0 = x[0], x1 = x[step], x2 = x[2 * step], x3 = x[3 * step];
  const float x4 = x[4 * step], x5 = x[5 * step], x6 = x[6 * step], x7 = x[7 * step];
#pragma omp simd
  for (std::int64_t j = 0; j < pairs; ++j) {
    float low = first[j], high = second[j];
    low += x0 * lower(w0[j]), high += x0 * upper(w0[j]);
    low += x1 * lower(w1[j]), high += x1 * upper(w1[j]);
    low += x2 * lower(w2[j]), high += x2 * upper(w2[j]);
    low += x3 * lower(w3[j]), high += x3 * upper(w3[j]);
    low += x4 * lower(w4[j]), high += x4 * upper(w4[j]);
    low += x5 * lower(w5[j]), high += x5 * upper(w5[j]);
    low += x6 * lower(w6[j]), high += x6 * upper(w6[j]);
    low += x7 * lower(w7[j]), high += x7 * upper(w7[j]);
    first[j] = low, second[j] = high;
  }
}

/// Same for one row of w.
template <class In>
void add_row(float* sums, float x, const In* w, std::int64_t columns) {
#pragma omp simd
  for (std::int64_t j = 0; j < columns; ++j)
    sums[j] += x * widen(w[j]);
}

/// x w for four rows of w; the results are stored `step` apart.
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

/// Same for k / 2 pairs; x has the numbers for the first of each pair, then those for the second.
void dot_four(float* out, std::int64_t step, const float* x, const Pair* w, std::int64_t ld,
              std::int64_t pairs) {
  const Pair *w0 = w, *w1 = w + ld, *w2 = w + 2 * ld, *w3 = w + 3 * ld;
  const float *first = x, *second = x + pairs;
  float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
  for (std::int64_t l = 0; l < pairs; ++l) {
    s0 += first[l] * lower(w0[l]) + second[l] * upper(w0[l]);
    s1 += first[l] * lower(w1[l]) + second[l] * upper(w1[l]);
    s2 += first[l] * lower(w2[l]) + second[l] * upper(w2[l]);
    s3 += first[l] * lower(w3[l]) + second[l] * upper(w3[l]);
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

/// Adds the bias and, if accumulating, the previous contents, and rounds once.
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

/// Writes finished sums [m, end - begin], with row stride `ld`, to columns [begin, end) of out.
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

/// Copies a to contiguous f32 rows.
template <class In>
const float* pack(const Gemm& op, GemmSize size) {
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

/// Copies x with the even elements of each row before the odd ones.
const float* split_pairs(const float* x, GemmSize size) {
  thread_local std::vector<float> split;
  split.resize(static_cast<std::size_t>(size.m * size.k));
  float* to = split.data();
  for (std::int64_t i = 0; i < size.m; ++i)
    for (std::int64_t odd = 0; odd < 2; ++odd)
      for (std::int64_t l = odd; l < size.k; l += 2)
        *to++ = x[i * size.k + l];
  return split.data();
}

/// b: [n, k]. Every result is one sum along a row of b.
template <class In, class Out>
void multiply_transposed(const Gemm& op, GemmSize size, const float* x) {
  const In* b = op.b.data<In>();
  const std::int64_t ldb = op.b.stride(0), k = size.k;
  const std::int64_t row_bytes = k * static_cast<std::int64_t>(sizeof(In));
  const std::int64_t grain = std::clamp<std::int64_t>(task_bytes / row_bytes / 4 * 4, 4, 1024);
  const bool pairs = in_pairs<In>(op, k);
  const float* const split = pairs ? split_pairs(x, size) : nullptr;
  parallel_ranges(size.n, grain, [&](std::int64_t begin, std::int64_t end) {
    thread_local std::vector<float> all;
    const std::int64_t count = end - begin, each = count / 4;
    all.resize(static_cast<std::size_t>(size.m * count));
    for (std::int64_t j = 0; j < each; ++j)
      for (std::int64_t i = 0; i < size.m; ++i) {
        float* const out = all.data() + i * count + j;
        const In* w = b + (begin + j) * ldb;
        if (pairs)
          dot_four(out, each, split + i * k, reinterpret_cast<const Pair*>(w), each * ldb / 2,
                   k / 2);
        else
          dot_four(out, each, x + i * k, w, each * ldb, k);
      }
    for (std::int64_t j = 4 * each; j < count; ++j)
      for (std::int64_t i = 0; i < size.m; ++i)
        all[static_cast<std::size_t>(i * count + j)] = dot_one(x + i * k, b + (begin + j) * ldb, k);
    finish<Out>(op, all.data(), count, begin, end);
  });
}

/// Adds x[first to last) times those rows of b to `sums`, in which the even columns of each block
/// come first.
void add_pairs(float* sums, const float* x, const Pair* b, std::int64_t ldb, std::int64_t first,
               std::int64_t last, std::int64_t pairs) {
  constexpr std::int64_t half = block / 2;
  const std::int64_t each = (last - first) / streams;
  for (std::int64_t l = first; l < first + each; ++l)
    for (std::int64_t j = 0; j < pairs; j += half)
      add_streams(sums + 2 * j, sums + 2 * j + half, x + l, each, b + l * ldb + j, each * ldb,
                  std::min(half, pairs - j));
  for (std::int64_t l = first + each * streams; l < last; ++l)
    for (std::int64_t j = 0; j < pairs; ++j) {
      float* const sum = sums + j / half * block + j % half;
      sum[0] += x[l] * lower(b[l * ldb + j]);
      sum[half] += x[l] * upper(b[l * ldb + j]);
    }
}

/// Puts the columns of a block back in order.
void join_pairs(float* sums) {
  constexpr std::int64_t half = block / 2;
  float first[half];
  std::copy_n(sums, half, first);
  for (std::int64_t j = 0; j < half; ++j) {
    sums[2 * j] = first[j];
    sums[2 * j + 1] = sums[half + j];
  }
}

/// Adds x[., first to last) times those rows of b to `sums`: the sums of one block of columns for
/// all rows of a one after another, then those of the next block.
template <class In>
void add_rows(float* sums, const float* x, GemmSize size, const In* b, std::int64_t ldb,
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
      // Contiguous copies cannot evict each other from the cache, and each element is widened once.
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

/// b: [k, n]. Its rows are divided into parts, whose sums are added at the end.
template <class In, class Out>
void multiply_plain(const Gemm& op, GemmSize size, const float* x) {
  const std::int64_t bytes = size.k * size.n * static_cast<std::int64_t>(sizeof(In));
  // A power of two divides evenly over as many threads.
  const auto wanted =
      std::bit_ceil(static_cast<std::uint64_t>((bytes + task_bytes - 1) / task_bytes));
  const std::int64_t parts = std::min(max_parts, static_cast<std::int64_t>(wanted));
  const std::int64_t rows = (size.k + parts - 1) / parts;
  const std::int64_t padded = (size.n + block - 1) / block * block;
  const std::int64_t part_size = size.m * padded;
  thread_local std::vector<float> kept;
  kept.resize(static_cast<std::size_t>(parts * part_size));
  float* const sums = kept.data();
  const In* b = op.b.data<In>();
  const std::int64_t ldb = op.b.stride(0);
  const bool pairs = size.m == 1 && in_pairs<In>(op, size.n);  // several rows share the widening
  parallel_for(parts, [&](std::int64_t part) {
    float* const mine = sums + part * part_size;
    const std::int64_t first = std::min(size.k, part * rows), last = std::min(size.k, first + rows);
    std::fill_n(mine, part_size, 0.0f);
    if (pairs)
      add_pairs(mine, x, reinterpret_cast<const Pair*>(b), ldb / 2, first, last, size.n / 2);
    else
      add_rows(mine, x, size, b, ldb, first, last, size.n);
  });
  for (std::int64_t part = 1; part < parts; ++part)
    add_row(sums, 1.0f, sums + part * part_size, part_size);
  for (std::int64_t j = 0; j < size.n; j += block) {
    if (pairs) join_pairs(sums + j);
    finish<Out>(op, sums + j * size.m, block, j, std::min(j + block, size.n));
  }
}

}  // namespace

bool has_few_rows(const Gemm& op) {
  const GemmSize size = size_of(op);
  return size.m > 0 && size.m <= max_rows && size.n > 0 && size.k > 0 && op.a.dtype != DType::f64;
}

void gemm_few_rows(const Gemm& op) {
  const GemmSize size = size_of(op);
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
