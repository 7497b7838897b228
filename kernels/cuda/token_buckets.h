#pragma once

#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/cuda/target.h"

namespace sluice::cuda {

/// The positions of each token of a part of the vocabulary in a batch, in the stream's workspace:
/// places[end[v-1] .. end[v]) are the positions of token first + v, in any order.
struct TokenBuckets {
  const std::int32_t* end;
  const std::int32_t* places;
};

/// Fills the buckets of the tokens [first, first + vocabulary); others are in no bucket. This is a
/// counting sort on integers: its atomics change the order in a bucket, never the contents.
TokenBuckets fill_buckets(const std::int32_t* tokens, std::int64_t count, std::int64_t first,
                          std::int64_t vocabulary, Stream stream);

/// A bucket in shared memory, sorted by the whole block.
struct SortedPlaces {
  static constexpr std::int32_t sortable = 2048;

  std::int32_t place[sortable];

  /// Bitonic sort (Batcher, 1968) over the next power of two; padding sorts to the end. All places
  /// differ, so the result does not depend on their initial order.
  __device__ void sort(const std::int32_t* places, std::int32_t count) {
    std::int32_t size = 1;
    while (size < count)
      size *= 2;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const auto threads = static_cast<std::int32_t>(blockDim.x);
    for (std::int32_t i = thread; i < size; i += threads)
      place[i] = i < count ? places[i] : 0x7FFFFFFF;
    __syncthreads();
    for (std::int32_t run = 2; run <= size; run *= 2) {
      for (std::int32_t step = run / 2; step > 0; step /= 2) {
        for (std::int32_t i = thread; i < size; i += threads) {
          const std::int32_t other = i ^ step;
          if (other < i) continue;
          const bool rising = (i & run) == 0;
          if ((place[i] > place[other]) == rising) {
            const std::int32_t held = place[i];
            place[i] = place[other];
            place[other] = held;
          }
        }
        __syncthreads();
      }
    }
  }
};

}  // namespace sluice::cuda
