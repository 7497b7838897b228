#pragma once

#include <cstdint>

namespace sluice::cpu {

/// One 64-byte SIMD register of A; the compiler splits it where registers are narrower.
template <class A>
struct Simd {
  static constexpr int width = 64 / static_cast<int>(sizeof(A));
  typedef A type __attribute__((vector_size(64), aligned(alignof(A)), may_alias));
};

/// How `tile_multiply` reads its left operand: element (i, k) is at i * row + k * column, so a
/// transposed operand costs nothing.
struct TileStrides {
  std::int64_t row;
  std::int64_t column;
};

/// Four rows by `registers` SIMD registers of the product, held in registers over the whole sum.
template <int registers, class A>
void tile_multiply_strip(A* c, std::int64_t ldc, const A* a, TileStrides strides, const A* b,
                         std::int64_t ldb, std::int64_t depth) {
  using Vector = typename Simd<A>::type;
  constexpr int width = Simd<A>::width;
  Vector sum[4][registers];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < registers; ++j)
      sum[i][j] = *reinterpret_cast<const Vector*>(c + i * ldc + j * width);
  for (std::int64_t k = 0; k < depth; ++k) {
    for (int j = 0; j < registers; ++j) {
      const Vector right = *reinterpret_cast<const Vector*>(b + k * ldb + j * width);
      for (int i = 0; i < 4; ++i)
        sum[i][j] += a[i * strides.row + k * strides.column] * right;
    }
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < registers; ++j)
      *reinterpret_cast<Vector*>(c + i * ldc + j * width) = sum[i][j];
}

/// c += a b for the small tiles of attention, all in cache. c: [rows, columns], b: [depth,
/// columns], row-major; rows a multiple of 4, columns a multiple of Simd<A>::width.
template <class A>
void tile_multiply(A* c, std::int64_t ldc, const A* a, TileStrides strides, const A* b,
                   std::int64_t ldb, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  constexpr int width = Simd<A>::width;
  for (std::int64_t i = 0; i < rows; i += 4) {
    const A* left = a + i * strides.row;
    A* out = c + i * ldc;
    std::int64_t j = 0;
    for (; j + 4 * width <= columns; j += 4 * width)
      tile_multiply_strip<4>(out + j, ldc, left, strides, b + j, ldb, depth);
    for (; j < columns; j += width)
      tile_multiply_strip<1>(out + j, ldc, left, strides, b + j, ldb, depth);
  }
}

}  // namespace sluice::cpu
