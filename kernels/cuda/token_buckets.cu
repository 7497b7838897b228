#include "kernels/cuda/token_buckets.h"

#include "kernels/cuda/atomic.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.h"

namespace sluice::cuda {
namespace {

constexpr int threads = 256;
constexpr int scan_warps = 32;
constexpr int scan_threads = scan_warps * warp_size;

__global__ void __launch_bounds__(threads) clear(std::int32_t* counts, std::int64_t vocabulary) {
  const std::int64_t v = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (v < vocabulary) counts[v] = 0;
}

__global__ void __launch_bounds__(threads)
    count_tokens(std::int32_t* counts, const std::int32_t* tokens, std::int64_t count,
                 std::int64_t first, std::int64_t vocabulary) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t v = tokens[i] - first;
  if (0 <= v && v < vocabulary) add_atomic(&counts[v], 1);
}

struct ScanShared {
  std::int32_t sums[scan_threads];
};

/// One block turns counts into the starts of the buckets. Each thread sums a contiguous part, and
/// thread 0 sums the parts.
__global__ void __launch_bounds__(scan_threads)
    scan(std::int32_t* counts, std::int64_t vocabulary) {
  auto& shared = shared_memory<ScanShared>();
  const std::int64_t stretch = (vocabulary + scan_threads - 1) / scan_threads;
  const std::int64_t begin = static_cast<std::int64_t>(threadIdx.x) * stretch;
  const std::int64_t end = begin + stretch < vocabulary ? begin + stretch : vocabulary;
  std::int32_t mine = 0;
  for (std::int64_t v = begin; v < end; ++v)
    mine += counts[v];
  shared.sums[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    std::int32_t sum = 0;
    for (int t = 0; t < scan_threads; ++t) {
      const std::int32_t own = shared.sums[t];
      shared.sums[t] = sum;
      sum += own;
    }
  }
  __syncthreads();
  std::int32_t sum = shared.sums[threadIdx.x];
  for (std::int64_t v = begin; v < end; ++v) {
    const std::int32_t own = counts[v];
    counts[v] = sum;
    sum += own;
  }
}

/// Stores each position at its bucket's cursor, which moves from the bucket's start to its end.
__global__ void __launch_bounds__(threads)
    fill(std::int32_t* cursors, std::int32_t* places, const std::int32_t* tokens,
         std::int64_t count, std::int64_t first, std::int64_t vocabulary) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t v = tokens[i] - first;
  if (0 <= v && v < vocabulary) places[add_atomic(&cursors[v], 1)] = static_cast<std::int32_t>(i);
}

}  // namespace

TokenBuckets fill_buckets(const std::int32_t* tokens, std::int64_t count, std::int64_t first,
                          std::int64_t vocabulary, Stream stream) {
  auto* cursors = workspace<std::int32_t>(stream, vocabulary + count);
  auto* places = cursors + vocabulary;
  launch(clear, {pieces(vocabulary, threads)}, {threads}, 0, stream, cursors, vocabulary);
  launch(count_tokens, {pieces(count, threads)}, {threads}, 0, stream, cursors, tokens, count,
         first, vocabulary);
  launch(scan, {1}, {scan_threads}, sizeof(ScanShared), stream, cursors, vocabulary);
  launch(fill, {pieces(count, threads)}, {threads}, 0, stream, cursors, places, tokens, count,
         first, vocabulary);
  return {.end = cursors, .places = places};
}

}  // namespace sluice::cuda
