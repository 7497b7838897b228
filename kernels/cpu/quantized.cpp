#include "kernels/quantized.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t elements_per_task = 1 << 16;

/// Calls body(first element, number of elements, scale's index) for each block of a row.
template <class Body>
void for_blocks(std::int64_t row, std::int64_t columns, const Body& body) {
  const std::int64_t blocks = quantized_blocks(columns);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t first = block * quantized_block;
    body(row * columns + first, std::min(quantized_block, columns - first), row * blocks + block);
  }
}

void quantize(std::int8_t* codes, Half& scale, const float* in, std::int64_t count) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::abs(in[i]));
  const float s = largest / 127;
  // Below normal numbers the inverse could be infinite. The scale in f16 is zero long before.
  const float inverse = s >= std::numeric_limits<float>::min() ? 1 / s : 0;
  scale = Half(s);
  for (std::int64_t i = 0; i < count; ++i)
    codes[i] = static_cast<std::int8_t>(std::round(in[i] * inverse));
}

template <class T>
void dequantize(T* out, const std::int8_t* codes, Half scale, std::int64_t count) {
  using A = Accumulator<T>;
  const A factor = static_cast<A>(static_cast<float>(scale));
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i)
    store(out[i], factor * static_cast<A>(codes[i]));
}

template <class Row>
void for_rows(const View& matrix, const Row& row) {
  const std::int64_t grain = std::max<std::int64_t>(1, elements_per_task / matrix.dim(-1));
  parallel_ranges(matrix.rows(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      row(i);
  });
}

}  // namespace

void launch_cpu(const Quantize& op) {
  check_quantized(op.in, op.codes, op.scales);
  const float* in = op.in.data<float>();
  std::int8_t* codes = op.codes.data<std::int8_t>();
  Half* scales = op.scales.data<Half>();
  for_rows(op.in, [&](std::int64_t row) {
    for_blocks(row, op.in.dim(-1), [&](std::int64_t at, std::int64_t count, std::int64_t scale) {
      quantize(codes + at, scales[scale], in + at, count);
    });
  });
}

void launch_cpu(const Dequantize& op) {
  check_quantized(op.out, op.codes, op.scales);
  const std::int8_t* codes = op.codes.data<std::int8_t>();
  const Half* scales = op.scales.data<Half>();
  dispatch_floating(op.out.dtype, [&]<class T>() {
    T* out = op.out.data<T>();
    for_rows(op.out, [&](std::int64_t row) {
      for_blocks(row, op.out.dim(-1), [&](std::int64_t at, std::int64_t count, std::int64_t scale) {
        dequantize(out + at, codes + at, scales[scale], count);
      });
    });
  });
}

}  // namespace sluice
