#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::cpu {

/// Bytes of the widest SIMD register of the build's target. A wider vector type would compile too,
/// but GCC moves its halves through the stack.
#if defined(__AVX512F__)
constexpr int simd_bytes = 64;
#elif defined(__AVX__)
constexpr int simd_bytes = 32;
#else
constexpr int simd_bytes = 16;
#endif

/// One SIMD register of elements of type A.
template <class A>
struct Simd {
  static constexpr int width = simd_bytes / static_cast<int>(sizeof(A));
  typedef A type __attribute__((vector_size(simd_bytes), aligned(alignof(A)), may_alias));
};

/// Strides of the left operand of `tile_multiply`: element (i, k) is at i * row + k * column, so a
/// transposed operand costs nothing.
struct TileStrides {
  std::int64_t row;
  std::int64_t column;
};

/// Selects the relevant elements of a product in causal attention's diagonal tile, where row i of
/// the scores has only the columns up to i.
enum class Triangle {
  none,           ///< all elements
  lower_product,  ///< of the product only column <= row; the others may stay as they are
  lower_left,     ///< of the left operand only k <= row; the others are 0
  upper_left,     ///< of the left operand only k >= row; the others are 0
};

/// Rows whose sums are held in registers together. With two registers per row, eight sums are meant
/// to hide the latency of a multiply-add and fit in sixteen registers; AVX-512 has thirty-two.
constexpr std::int64_t strip_rows = simd_bytes == 64 ? 8 : 4;

/// Computes a strip of rows by `registers` SIMD registers of the product, summed over [begin, end).
template <int registers, class A>
void tile_multiply_strip(A* c, std::int64_t ldc, const A* a, TileStrides strides, const A* b,
                         std::int64_t ldb, std::int64_t begin, std::int64_t end) {
  using Vector = typename Simd<A>::type;
  constexpr int width = Simd<A>::width;
  Vector sum[strip_rows][registers];
  for (int i = 0; i < strip_rows; ++i)
    for (int j = 0; j < registers; ++j)
      sum[i][j] = *reinterpret_cast<const Vector*>(c + i * ldc + j * width);
  for (std::int64_t k = begin; k < end; ++k) {
    Vector right[registers];
    for (int j = 0; j < registers; ++j)
      right[j] = *reinterpret_cast<const Vector*>(b + k * ldb + j * width);
    for (int i = 0; i < strip_rows; ++i)
      for (int j = 0; j < registers; ++j)
        sum[i][j] += a[i * strides.row + k * strides.column] * right[j];
  }
  for (int i = 0; i < strip_rows; ++i)
    for (int j = 0; j < registers; ++j)
      *reinterpret_cast<Vector*>(c + i * ldc + j * width) = sum[i][j];
}

/// c += a b for the small tiles of attention, meant to be all in cache. c: [rows, columns], b:
/// [depth, columns], row-major; rows a multiple of `strip_rows`, columns of Simd<A>::width.
template <class A>
void tile_multiply(A* c, std::int64_t ldc, const A* a, TileStrides strides, const A* b,
                   std::int64_t ldb, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                   Triangle triangle = Triangle::none) {
  constexpr int width = Simd<A>::width;
  for (std::int64_t i = 0; i < rows; i += strip_rows) {
    const A* left = a + i * strides.row;
    A* out = c + i * ldc;
    const std::int64_t past = i + strip_rows;
    const std::int64_t until =
        triangle == Triangle::lower_product ? std::min(columns, past) : columns;
    const std::int64_t begin = triangle == Triangle::upper_left ? i : 0;
    const std::int64_t end = triangle == Triangle::lower_left ? std::min(depth, past) : depth;
    std::int64_t j = 0;
    for (; j + width < until; j += 2 * width)
      tile_multiply_strip<2>(out + j, ldc, left, strides, b + j, ldb, begin, end);
    if (j < until) tile_multiply_strip<1>(out + j, ldc, left, strides, b + j, ldb, begin, end);
  }
}

}  // namespace sluice::cpu
