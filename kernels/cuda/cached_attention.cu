#include <cmath>

#include "kernels/attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;
constexpr int max_width = 256;
constexpr int per_lane = max_width / warp_size;

/// Copies the new keys and values to their positions in the caches.
template <class T>
__global__ void __launch_bounds__(threads)
    append(T* key_cache, T* value_cache, const T* qkv, std::int64_t fresh, std::int64_t start,
           std::int64_t capacity, std::int64_t channels) {
  const std::int64_t row = blockIdx.x;  // index among the new positions of the batch
  const T* from = qkv + row * 3 * channels;
  const std::int64_t to = (row / fresh * capacity + start + row % fresh) * channels;
  for (std::int64_t j = threadIdx.x; j < channels; j += threads) {
    key_cache[to + j] = from[channels + j];
    value_cache[to + j] = from[2 * channels + j];
  }
}

struct Shared {
  float top[warps];
  float sum[warps];
  float out[warps][max_width];
};

/// Block (head, new position, sequence). Its warps take the keys in turn, each with its own
/// softmax, and the four results are combined in order at the end.
template <class T>
__global__ void __launch_bounds__(threads)
    attend(T* out, const T* key_cache, const T* value_cache, const T* qkv, std::int64_t fresh,
           std::int64_t start, std::int64_t capacity, std::int64_t channels, int width,
           float scale) {
  auto& shared = shared_memory<Shared>();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.x) * width;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.z) * fresh + blockIdx.y;
  const std::int64_t keys = start + blockIdx.y + 1;
  const T* k = key_cache + blockIdx.z * capacity * channels + head;
  const T* v = value_cache + blockIdx.z * capacity * channels + head;
  float query[per_lane] = {}, sums[per_lane] = {};
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int d = i * warp_size + lane;
    if (d < width) query[i] = to_float(qkv[row * 3 * channels + head + d]) * scale;
  }
  float top = -INFINITY, sum = 0;
  for (std::int64_t j = warp; j < keys; j += warps) {
    float score = 0;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const int d = i * warp_size + lane;
      if (d < width) score += query[i] * to_float(k[j * channels + d]);
    }
    score = warp_sum(score) * log2_e;
    const float higher = maximum(top, score);
    const float shrink = exp2_fast(top - higher);
    const float weight = exp2_fast(score - higher);
    top = higher;
    sum = sum * shrink + weight;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const int d = i * warp_size + lane;
      if (d < width) sums[i] = sums[i] * shrink + weight * to_float(v[j * channels + d]);
    }
  }
  if (lane == 0) {
    shared.top[warp] = top;
    shared.sum[warp] = sum;
  }
#pragma unroll
  for (int i = 0; i < per_lane; ++i)
    shared.out[warp][i * warp_size + lane] = sums[i];
  __syncthreads();
  float highest = shared.top[0];
  for (int w = 1; w < warps; ++w)
    highest = maximum(highest, shared.top[w]);
  for (int d = static_cast<int>(threadIdx.x); d < width; d += threads) {
    float total = 0, result = 0;
    for (int w = 0; w < warps; ++w) {
      const float share = exp2_fast(shared.top[w] - highest);  // 0 for a warp without keys
      total += shared.sum[w] * share;
      result += shared.out[w][d] * share;
    }
    out[row * channels + head + d] = from_float<T>(result / total);
  }
}

}  // namespace

void launch_cuda(const CachedAttention& op, Stream stream) {
  const std::int64_t batch = op.qkv.dim(0);
  const std::int64_t fresh = op.qkv.dim(1);
  const std::int64_t channels = op.out.dim(2);
  const std::int64_t capacity = op.key_cache.dim(1);
  const auto width = static_cast<int>(channels / op.heads);
  check(width <= max_width, "attention heads on a GPU are at most 256 wide when generating");
  dispatch(op.qkv.dtype, [&]<class T>() {
    launch(append<T>, {static_cast<unsigned>(batch * fresh)}, {threads}, 0, stream,
           op.key_cache.data<T>(), op.value_cache.data<T>(), op.qkv.data<T>(), fresh, op.start,
           capacity, channels);
    launch(attend<T>,
           {static_cast<unsigned>(op.heads), static_cast<unsigned>(fresh),
            static_cast<unsigned>(batch)},
           {threads}, sizeof(Shared), stream, op.out.data<T>(), op.key_cache.data<T>(),
           op.value_cache.data<T>(), op.qkv.data<T>(), fresh, op.start, capacity, channels, width,
           1.0f / std::sqrt(static_cast<float>(width)));
  });
}

}  // namespace sluice
