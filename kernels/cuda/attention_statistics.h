#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cuda/attention_products.h"

namespace sluice::cuda {

/// Softmax statistics of two neighbouring queries, which the backward pass reads. An array of them
/// has statistics_rows(length) / 2 per head, so that no tile needs a check of its end.
struct PairStatistics {
  /// -(sum of grad_out * out) over either row, twice: the accumulators of two neighbouring columns,
  /// from which the gradients of probabilities start.
  Accumulators minus_delta;
  float log_sum_exp[2];  ///< times log2(e); +infinity beyond the last query, where weights are 0
  float unused[2];       ///< whole 16-byte chunks

  /// Sets those of the first or second query, from the sum of its grad_out * out and its natural
  /// log_sum_exp.
  __device__ __forceinline__ void set(int which, float delta, float natural_log_sum_exp) {
    minus_delta.values[which] = minus_delta.values[which + 2] = -delta;
    log_sum_exp[which] = natural_log_sum_exp * log2_e;
  }
};

constexpr std::int64_t statistics_rows(std::int64_t length) {
  return (length + 127) / 128 * 128;
}

/// Copies the statistics of one tile of queries after the other, 16 bytes with each of the first
/// threads.
template <int rows, Staging staging>
class StatisticsCopy {
 public:
  __device__ __forceinline__ explicit StatisticsCopy(const PairStatistics* first)
      : next_(reinterpret_cast<const Accumulators*>(first) + threadIdx.x) {}

  __device__ __forceinline__ void start(PairStatistics* tile) {
    if (static_cast<int>(threadIdx.x) < rows) {
      if constexpr (staging == Staging::async)
        cp_async_16(shared_address(place(tile)), next_, true);
      else
        held_ = *next_;
      next_ += rows;
    }
  }
  __device__ __forceinline__ void finish(PairStatistics* tile) {
    if (staging == Staging::registers && static_cast<int>(threadIdx.x) < rows) *place(tile) = held_;
  }

 private:
  static_assert(2 * sizeof(Accumulators) == sizeof(PairStatistics) && rows <= attention_threads);
  static __device__ __forceinline__ Accumulators* place(PairStatistics* tile) {
    return reinterpret_cast<Accumulators*>(tile) + threadIdx.x;
  }

  const Accumulators* next_;
  Accumulators held_;
};

/// Writes the statistics of `rows` queries from `first` on, those beyond the last one too.
/// Neighbouring threads have a row, 16 bytes each.
template <class T, int D, int rows, Staging staging>
__device__ __forceinline__ void write_statistics(PairStatistics* statistics,
                                                 const HeadRows<T>& grads, const HeadRows<T>& outs,
                                                 const float* log_sum_exp, int first) {
  constexpr int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(D / chunk)));
  constexpr int distance = attention_threads / lanes;  // between rows of a thread
  // Loads are under way for so many rows, where registers allow it.
  constexpr int ahead = staging == Staging::async ? std::min(4, rows / distance) : 1;
  const int column = static_cast<int>(threadIdx.x) % lanes * chunk;
  const bool inside = column < grads.width;
  const int last = grads.count - 1;
  for (int row = first + static_cast<int>(threadIdx.x) / lanes; row < first + rows;
       row += ahead * distance) {
    Packed<T, chunk> grad[ahead], out[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      // Beyond the end any numbers do: nothing branches around the loads.
      const std::int64_t from = row + i * distance < last ? row + i * distance : last;
      const std::int64_t at = from * grads.stride + (inside ? column : 0);
      grad[i] = load_packed<chunk>(grads.start + at);
      out[i] = load_packed<chunk>(outs.start + at);
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < chunk; ++j)
        sum += grad[i][j] * out[i][j];
      if (!inside) sum = 0;
#pragma unroll
      for (int mask = lanes / 2; mask > 0; mask /= 2)
        sum += shuffle_xor(sum, mask);
      const int query = row + i * distance;
      if (column == 0)
        statistics[query / 2].set(query % 2, sum, query <= last ? log_sum_exp[query] : INFINITY);
    }
  }
}

}  // namespace sluice::cuda
