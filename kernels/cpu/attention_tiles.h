#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/math.h"
#include "kernels/dropout.h"

namespace sluice::cpu {

/// Queries and keys are processed in square tiles of this many positions.
constexpr std::int64_t attention_tile = 64;

/// The width of a head, or a number of elements of a row, padded to whole SIMD registers.
constexpr std::int64_t padded_width(std::int64_t width) {
  return (width + 15) / 16 * 16;
}
constexpr std::int64_t padded_length(std::int64_t positions) {
  return (positions + attention_tile - 1) / attention_tile * attention_tile;
}

/// Scratch memory that a thread keeps between calls; it still holds the contents of earlier calls.
template <class A, int which>
A* thread_scratch(std::int64_t count) {
  thread_local std::vector<A> buffer;
  if (static_cast<std::int64_t>(buffer.size()) < count)
    buffer.resize(static_cast<std::size_t>(count));
  return buffer.data();
}

/// Copies `rows` strided rows, scaled, into a zero-padded [padded_rows, ld] scratch tile.
template <class T, class A>
void load_rows(A* to, std::int64_t ld, const T* from, std::int64_t stride, std::int64_t rows,
               std::int64_t width, std::int64_t padded_rows, A scale = 1) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t d = 0; d < width; ++d)
      to[i * ld + d] = static_cast<A>(from[i * stride + d]) * scale;
    std::fill(to + i * ld + width, to + (i + 1) * ld, A{0});
  }
  std::fill(to + rows * ld, to + padded_rows * ld, A{0});
}

/// Copies `rows` strided rows, transposed, into a zero-padded [width, attention_tile] tile.
template <class T, class A>
void load_transposed(A* to, const T* from, std::int64_t stride, std::int64_t rows,
                     std::int64_t width) {
  for (std::int64_t d = 0; d < width; ++d) {
    for (std::int64_t i = 0; i < rows; ++i)
      to[d * attention_tile + i] = static_cast<A>(from[i * stride + d]);
    std::fill(to + d * attention_tile + rows, to + (d + 1) * attention_tile, A{0});
  }
}

/// Computes the dropout factors (0 or 1/(1-p)) of one row of attention probabilities: row `row`,
/// keys [first_key, first_key + attention_tile).
template <class A>
void dropout_row(A* factors, const DropoutMask& mask, std::int64_t sample, std::int64_t row,
                 std::int64_t first_key) {
  const A scale = static_cast<A>(mask.scale());
  for (std::int64_t k = 0; k < attention_tile; k += 4) {
    const auto words = philox(
        mask.key,
        static_cast<std::uint64_t>((first_key + k) / 4) | static_cast<std::uint64_t>(row) << 24,
        static_cast<std::uint64_t>(mask.first_sample + sample));
    for (std::int64_t i = 0; i < 4; ++i)
      factors[k + i] = words[static_cast<std::size_t>(i)] >= mask.threshold() ? scale : A{0};
  }
}

}  // namespace sluice::cpu
