#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tile.h"

namespace sluice {
namespace {

using namespace cpu;

/// Queries and keys are processed in square tiles of this many positions.
constexpr std::int64_t attention_tile = 64;

/// The width of a head, or a number of elements of a row, padded to whole SIMD registers.
constexpr std::int64_t padded_width(std::int64_t width) {
  return (width + 15) / 16 * 16;
}
constexpr std::int64_t padded_length(std::int64_t positions) {
  return (positions + attention_tile - 1) / attention_tile * attention_tile;
}

/// The columns at which the parts of a head begin in a row of q, k and v.
struct Columns {
  std::int64_t width, stride;
  std::int64_t query, key, value;

  /// `h`: a head of q.
  Columns(const AttentionHeads& heads, std::int64_t channels, std::int64_t h)
      : width(channels / heads.query),
        stride(heads.in_row() * width),
        query(h * width),
        key((heads.query + h / heads.group()) * width),
        value(key + heads.key_value * width) {}
};

/// Scratch memory that a thread keeps between calls; it still holds the contents of earlier calls.
template <class A>
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
  const Columns columns(op.heads, channels, h);
  const std::int64_t width = columns.width;
  const std::int64_t ld = padded_width(width);
  const std::int64_t stride = columns.stride;
  const std::int64_t rows = std::min(attention_tile, positions - first);
  const T* sample = op.qkv.data<T>() + b * positions * stride;
  const T* q = sample + columns.query;
  const T* k = sample + columns.key;
  const T* v = sample + columns.value;

  A* query = thread_scratch<A>(attention_tile * (4 * ld + attention_tile));
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
  A* lse = op.log_sum_exp.data<A>() + (b * op.heads.query + h) * positions + first;
  for (std::int64_t i = 0; i < rows; ++i) {
    const A inverse = A{1} / softmax.sum[i];
    for (std::int64_t d = 0; d < width; ++d)
      store(out[i * channels + d], sum[i * ld + d] * inverse);
    lse[i] = softmax.maximum[i] + std::log(softmax.sum[i]);
  }
}

/// The backward pass of one head of k and v and the heads of q that attend to it. Recomputes
/// probabilities tile by tile from q, k and the stored log-sum-exp; with delta = rowsum(grad_out *
/// out), the gradient of a score is P * (dP - delta) (FlashAttention-2, algorithm 2). One thread
/// walks all tiles of a head in a fixed order, so the sums are the same for any number of threads.
template <class T>
class HeadBackward {
  using A = Accumulator<T>;

 public:
  HeadBackward(const AttentionBackward& op, std::int64_t b, std::int64_t key_value_head)
      : op_(op),
        sample_(b),
        group_(op.heads.group()),
        first_head_(key_value_head * group_),
        positions_(op.qkv.dim(1)),
        channels_(op.out.dim(2)),
        columns_(op.heads, channels_, first_head_),
        width_(columns_.width),
        ld_(padded_width(width_)),
        stride_(columns_.stride),
        rows_(padded_length(positions_)),
        scale_(A{1} / std::sqrt(static_cast<A>(width_))) {
    const std::int64_t tile = attention_tile * ld_;
    const std::int64_t rows = group_ * rows_;
    A* scratch =
        thread_scratch<A>(3 * rows * ld_ + rows + 5 * tile + 2 * attention_tile * attention_tile);
    const auto take = [&scratch](std::int64_t count) {
      A* start = scratch;
      scratch += count;
      return start;
    };
    query_ = take(rows * ld_);
    grad_out_ = take(rows * ld_);
    grad_query_ = take(rows * ld_);
    key_ = take(tile);
    key_transposed_ = take(tile);
    value_transposed_ = take(tile);
    grad_key_ = take(tile);
    grad_value_ = take(tile);
    probabilities_ = take(attention_tile * attention_tile);
    grad_scores_ = take(attention_tile * attention_tile);
    delta_ = take(rows);
  }

  void run() {
    for (std::int64_t member = 0; member < group_; ++member)
      load(member);
    const T* sample = op_.qkv.data<T>() + sample_ * positions_ * stride_;
    const T* k = sample + columns_.key;
    const T* v = sample + columns_.value;
    for (std::int64_t key = 0; key < positions_; key += attention_tile) {
      const std::int64_t keys = std::min(attention_tile, positions_ - key);
      load_rows(key_, ld_, k + key * stride_, stride_, keys, width_, attention_tile);
      load_transposed(key_transposed_, k + key * stride_, stride_, keys, width_);
      load_transposed(value_transposed_, v + key * stride_, stride_, keys, width_);
      std::fill(grad_key_, grad_key_ + attention_tile * ld_, A{0});
      std::fill(grad_value_, grad_value_ + attention_tile * ld_, A{0});
      for (std::int64_t member = 0; member < group_; ++member)
        for (std::int64_t query = key; query < positions_; query += attention_tile)
          accumulate(member, query, key);
      store(grad_key_, columns_.key, key, keys, 1);
      store(grad_value_, columns_.value, key, keys, 1);
    }
    for (std::int64_t member = 0; member < group_; ++member)
      store(grad_query_ + member * rows_ * ld_, columns_.query + member * width_, 0, positions_,
            scale_);
  }

 private:
  /// Loads what belongs to head `member` of the group.
  void load(std::int64_t member) {
    const std::int64_t column = (first_head_ + member) * width_;
    const std::int64_t first = sample_ * positions_;
    const T* out = op_.out.data<T>() + first * channels_ + column;
    const T* from = op_.grad_out.data<T>() + first * channels_ + column;
    A* const grad_out = grad_out_ + member * rows_ * ld_;
    load_rows(query_ + member * rows_ * ld_, ld_, op_.qkv.data<T>() + first * stride_ + column,
              stride_, positions_, width_, rows_, scale_);
    load_rows(grad_out, ld_, from, channels_, positions_, width_, rows_);
    std::fill_n(grad_query_ + member * rows_ * ld_, rows_ * ld_, A{0});
    for (std::int64_t i = 0; i < positions_; ++i) {
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t d = 0; d < width_; ++d)
        sum += grad_out[i * ld_ + d] * static_cast<A>(out[i * channels_ + d]);
      delta_[member * rows_ + i] = sum;
    }
  }

  /// Adds the contributions of the pair (query tile, key tile) to all three gradients.
  void accumulate(std::int64_t member, std::int64_t query, std::int64_t key) {
    constexpr std::int64_t n = attention_tile;
    const std::int64_t head = first_head_ + member;
    const std::int64_t first_row = member * rows_ + query;
    const std::int64_t rows = std::min(n, positions_ - query);
    const bool diagonal = query == key;
    const auto on_diagonal = [=](Triangle triangle) {
      return diagonal ? triangle : Triangle::none;
    };
    std::fill(probabilities_, probabilities_ + n * n, A{0});
    std::fill(grad_scores_, grad_scores_ + n * n, A{0});
    tile_multiply(probabilities_, n, query_ + first_row * ld_, {ld_, 1}, key_transposed_, n, n, n,
                  width_, on_diagonal(Triangle::lower_product));
    tile_multiply(grad_scores_, n, grad_out_ + first_row * ld_, {ld_, 1}, value_transposed_, n, n,
                  n, width_, on_diagonal(Triangle::lower_product));
    const A* lse =
        op_.log_sum_exp.data<A>() + (sample_ * op_.heads.query + head) * positions_ + query;
    A factors[n];
    for (std::int64_t i = 0; i < n; ++i) {
      A* p = probabilities_ + i * n;
      A* ds = grad_scores_ + i * n;
      const std::int64_t visible = i >= rows ? 0 : (diagonal ? i + 1 : n);
      const A log_sum = i < rows ? lse[i] : A{0};
      const A delta = delta_[first_row + i];
      if (op_.mask.active() && i < rows)
        dropout_row(factors, op_.mask, sample_, (op_.first_head + head) * positions_ + query + i,
                    key);
      else
        std::fill(factors, factors + n, A{1});
      // Computes whole registers: the compiler's remainder loop would take one element at a time.
      const std::int64_t computed = padded_width(visible);
#pragma omp simd
      for (std::int64_t j = 0; j < computed; ++j) {
        const A probability = fast_exp(p[j] - log_sum);
        ds[j] = probability * (ds[j] * factors[j] - delta);
        p[j] = probability * factors[j];
      }
      std::fill(p + visible, p + n, A{0});
      std::fill(ds + visible, ds + n, A{0});
    }
    tile_multiply(grad_value_, ld_, probabilities_, {1, n}, grad_out_ + first_row * ld_, ld_, n,
                  ld_, n, on_diagonal(Triangle::upper_left));
    tile_multiply(grad_key_, ld_, grad_scores_, {1, n}, query_ + first_row * ld_, ld_, n, ld_, n,
                  on_diagonal(Triangle::upper_left));
    tile_multiply(grad_query_ + first_row * ld_, ld_, grad_scores_, {n, 1}, key_, ld_, n, ld_, n,
                  on_diagonal(Triangle::lower_left));
  }

  /// Stores rows of one part of the gradient, which begins at `column`, times `factor`: the score's
  /// scale for grad_query. grad_key includes it, since the query tile is already multiplied by it.
  void store(const A* from, std::int64_t column, std::int64_t first, std::int64_t rows, A factor) {
    T* to = op_.grad_qkv.data<T>() + (sample_ * positions_ + first) * stride_ + column;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t d = 0; d < width_; ++d)
        cpu::store(to[i * stride_ + d], from[i * ld_ + d] * factor);
  }

  const AttentionBackward& op_;
  std::int64_t sample_, group_, first_head_, positions_, channels_;
  Columns columns_;  ///< of the group's first head
  std::int64_t width_, ld_, stride_;
  std::int64_t rows_;  ///< positions, padded to whole tiles
  A scale_;
  A *query_, *grad_out_, *grad_query_, *key_, *key_transposed_, *value_transposed_;
  A *grad_key_, *grad_value_, *probabilities_, *grad_scores_, *delta_;
};

}  // namespace

void launch_cpu(const AttentionForward& op) {
  dispatch_floating(op.qkv.dtype, [&]<class T>() {
    const std::int64_t tiles = padded_length(op.qkv.dim(1)) / attention_tile;
    const std::int64_t heads = op.heads.query;
    parallel_for(op.qkv.dim(0) * heads * tiles, [&](std::int64_t task) {
      // Runs long rows first within a head: the last tile attends to the most keys.
      const std::int64_t tile = tiles - 1 - task % tiles;
      const std::int64_t head = task / tiles;
      forward_tile<T>(op, head / heads, head % heads, tile * attention_tile);
    });
  });
}

void launch_cpu(const AttentionBackward& op) {
  dispatch_floating(op.qkv.dtype, [&]<class T>() {
    const std::int64_t heads = op.heads.key_value;
    parallel_for(op.qkv.dim(0) * heads,
                 [&](std::int64_t task) { HeadBackward<T>(op, task / heads, task % heads).run(); });
  });
}

}  // namespace sluice
