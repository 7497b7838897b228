#include "kernels/attention.h"

#include <cmath>
#include <limits>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tile.h"

namespace sluice {
namespace {

using namespace cpu;

/// Turns the scores of one query tile against one key tile into probabilities relative to a running
/// maximum; sums and maxima are those of the online softmax.
template <class A>
struct OnlineSoftmax {
  A maximum[attention_tile];
  A sum[attention_tile];

  OnlineSoftmax() {
    std::fill(maximum, maximum + attention_tile, -std::numeric_limits<A>::infinity());
    std::fill(sum, sum + attention_tile, A{0});
  }

  /// Replaces scores[row, 0..keys) by exp(score - maximum) and the rest of the row by 0. Returns
  /// the factor by which earlier results of this row must be scaled down.
  A absorb(A* scores, std::int64_t row, std::int64_t keys) {
    // Computes whole registers: the compiler's remainder loop would take one element at a time.
    const std::int64_t computed = padded_width(keys);
    std::fill(scores + keys, scores + computed, -std::numeric_limits<A>::infinity());
    A top = maximum[row];
#pragma omp simd reduction(max : top)
    for (std::int64_t j = 0; j < computed; ++j)
      top = scores[j] > top ? scores[j] : top;
    A total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t j = 0; j < computed; ++j) {
      scores[j] = fast_exp(scores[j] - top);
      total += scores[j];
    }
    std::fill(scores + computed, scores + attention_tile, A{0});
    const A shrink = fast_exp(maximum[row] - top);
    maximum[row] = top;
    sum[row] = sum[row] * shrink + total;
    return shrink;
  }
};

template <class T>
void forward_tile(const AttentionForward& op, std::int64_t b, std::int64_t h, std::int64_t first) {
  using A = Accumulator<T>;
  const std::int64_t positions = op.qkv.dim(1);
  const std::int64_t channels = op.out.dim(2);
  const std::int64_t width = channels / op.heads;
  const std::int64_t ld = padded_width(width);
  const std::int64_t stride = 3 * channels;
  const std::int64_t rows = std::min(attention_tile, positions - first);
  const T* q = op.qkv.data<T>() + b * positions * stride + h * width;
  const T* k = q + channels;
  const T* v = k + channels;

  A* query = thread_scratch<A, 0>(attention_tile * (4 * ld + attention_tile));
  A* key_transposed = query + attention_tile * ld;
  A* value = key_transposed + attention_tile * ld;
  A* sum = value + attention_tile * ld;
  A* scores = sum + attention_tile * ld;

  load_rows(query, ld, q + first * stride, stride, rows, width, attention_tile,
            A{1} / std::sqrt(static_cast<A>(width)));
  std::fill(sum, sum + attention_tile * ld, A{0});
  OnlineSoftmax<A> softmax;
  A factors[attention_tile];
  for (std::int64_t key = 0; key <= first; key += attention_tile) {
    const std::int64_t keys = std::min(attention_tile, positions - key);
    load_transposed(key_transposed, k + key * stride, stride, keys, width);
    load_rows(value, ld, v + key * stride, stride, keys, width, attention_tile);
    const bool diagonal = key == first;
    std::fill(scores, scores + attention_tile * attention_tile, A{0});
    tile_multiply(scores, attention_tile, query, {ld, 1}, key_transposed, attention_tile,
                  attention_tile, attention_tile, width,
                  diagonal ? Triangle::lower_product : Triangle::none);
    for (std::int64_t i = 0; i < rows; ++i) {
      A* row = scores + i * attention_tile;
      const std::int64_t visible = diagonal ? i + 1 : attention_tile;
      const A shrink = softmax.absorb(row, i, visible);
      for (std::int64_t d = 0; d < ld; ++d)
        sum[i * ld + d] *= shrink;
      if (op.mask.active()) {
        dropout_row(factors, op.mask, b, (op.first_head + h) * positions + first + i, key);
        for (std::int64_t j = 0; j < attention_tile; ++j)
          row[j] *= factors[j];
      }
    }
    tile_multiply(sum, ld, scores, {attention_tile, 1}, value, ld, attention_tile, ld,
                  attention_tile, diagonal ? Triangle::lower_left : Triangle::none);
  }
  T* out = op.out.data<T>() + (b * positions + first) * channels + h * width;
  A* lse = op.log_sum_exp.data<A>() + (b * op.heads + h) * positions + first;
  for (std::int64_t i = 0; i < rows; ++i) {
    const A inverse = A{1} / softmax.sum[i];
    for (std::int64_t d = 0; d < width; ++d)
      store(out[i * channels + d], sum[i * ld + d] * inverse);
    lse[i] = softmax.maximum[i] + std::log(softmax.sum[i]);
  }
}

}  // namespace

void launch_cpu(const AttentionForward& op) {
  dispatch_floating(op.qkv.dtype, [&]<class T>() {
    const std::int64_t tiles = padded_length(op.qkv.dim(1)) / attention_tile;
    parallel_for(op.qkv.dim(0) * op.heads * tiles, [&](std::int64_t task) {
      // Runs long rows first within a head: the last tile attends to the most keys.
      const std::int64_t tile = tiles - 1 - task % tiles;
      const std::int64_t head = task / tiles;
      forward_tile<T>(op, head / op.heads, head % op.heads, tile * attention_tile);
    });
  });
}

}  // namespace sluice
