#include <cmath>

#include "kernels/attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int warps = 8;
constexpr int threads = warps * warp_size;
constexpr int max_width = 256;

/// Copies the new keys and values to their positions in the caches.
template <class T>
__global__ void __launch_bounds__(threads)
    append(T* key_cache, T* value_cache, const T* qkv, std::int64_t stride, std::int64_t fresh,
           std::int64_t start, std::int64_t capacity, std::int64_t channels) {
  const std::int64_t row = blockIdx.x;  // index among the new positions of the batch
  const T* from = qkv + (row + 1) * stride - 2 * channels;
  const std::int64_t to = (row / fresh * capacity + start + row % fresh) * channels;
  for (std::int64_t j = threadIdx.x; j < channels; j += threads) {
    key_cache[to + j] = from[j];
    value_cache[to + j] = from[channels + j];
  }
}

struct Shared {
  float top[warps];
  float sum[warps];
  float out[warps][max_width];
};

/// Block (head of q, new position, sequence). Its warps take groups of keys in turn, each with its
/// own softmax, and their results are combined in order at the end. A lane has `per_lane` columns
/// of a head. One block has a whole head to read, so that the time is that of the loads' latency:
/// those of a group, keys and values, are all under way together. There are few blocks, so the
/// compiler need not save registers for more than two on a multiprocessor.
template <class T, int per_lane>
__global__ void __launch_bounds__(threads, 2)
    attend(T* out, const T* key_cache, const T* value_cache, const T* qkv, std::int64_t stride,
           std::int64_t fresh, std::int64_t start, std::int64_t capacity, std::int64_t channels,
           int group_heads, int width, float scale) {
  auto& shared = shared_memory<Shared>();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.x) * width;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.z) * fresh + blockIdx.y;
  const std::int64_t keys = start + blockIdx.y + 1;
  const std::int64_t shared_head =
      static_cast<std::int64_t>(static_cast<int>(blockIdx.x) / group_heads) * width;
  const T* k = key_cache + blockIdx.z * capacity * channels + shared_head;
  const T* v = value_cache + blockIdx.z * capacity * channels + shared_head;
  float query[per_lane] = {}, sums[per_lane] = {};
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int d = i * warp_size + lane;
    if (d < width) query[i] = to_float(qkv[row * stride + head + d]) * scale;
  }
  constexpr int group = 16 / per_lane;
  float top = -INFINITY, sum = 0;
  for (std::int64_t first = warp * group; first < keys; first += warps * group) {
    float key[group][per_lane] = {}, value[group][per_lane] = {};
#pragma unroll
    for (int g = 0; g < group; ++g)
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        const int d = i * warp_size + lane;
        if (d >= width || first + g >= keys) continue;
        key[g][i] = to_float(k[(first + g) * channels + d]);
        value[g][i] = to_float(v[(first + g) * channels + d]);
      }
    float score[group] = {}, higher = top;
#pragma unroll
    for (int g = 0; g < group; ++g) {
#pragma unroll
      for (int i = 0; i < per_lane; ++i)
        score[g] += query[i] * key[g][i];
      score[g] = first + g < keys ? warp_sum(score[g]) * log2_e : -INFINITY;
      higher = maximum(higher, score[g]);
    }
    const float shrink = exp2_fast(top - higher);
    top = higher;
    sum *= shrink;
#pragma unroll
    for (int i = 0; i < per_lane; ++i)
      sums[i] *= shrink;
#pragma unroll
    for (int g = 0; g < group; ++g) {
      const float weight = exp2_fast(score[g] - higher);
      sum += weight;
#pragma unroll
      for (int i = 0; i < per_lane; ++i)
        sums[i] += weight * value[g][i];
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
    out[row * std::int64_t{gridDim.x} * width + head + d] = from_float<T>(result / total);
  }
}

}  // namespace

void launch_cuda(const CachedAttention& op, Stream stream) {
  const std::int64_t batch = op.qkv.dim(0);
  const std::int64_t fresh = op.qkv.dim(1);
  const std::int64_t stride = op.qkv.dim(2);
  const std::int64_t capacity = op.key_cache.dim(1);
  const std::int64_t channels = op.key_cache.dim(2);  // of k, and of v
  const auto width = static_cast<int>(op.out.dim(2) / op.heads.query);
  constexpr int few = 2, many = max_width / warp_size;  // columns of a lane
  check(width <= max_width, "attention heads on a GPU are at most 256 wide when generating");
  dispatch(op.qkv.dtype, [&]<class T>() {
    launch(append<T>, {static_cast<unsigned>(batch * fresh)}, {threads}, 0, stream,
           op.key_cache.data<T>(), op.value_cache.data<T>(), op.qkv.data<T>(), stride, fresh,
           op.start, capacity, channels);
    launch(width <= few * warp_size ? attend<T, few> : attend<T, many>,
           {static_cast<unsigned>(op.heads.query), static_cast<unsigned>(fresh),
            static_cast<unsigned>(batch)},
           {threads}, sizeof(Shared), stream, op.out.data<T>(), op.key_cache.data<T>(),
           op.value_cache.data<T>(), op.qkv.data<T>(), stride, fresh, op.start, capacity, channels,
           op.heads.group(), width, 1.0f / std::sqrt(static_cast<float>(width)));
  });
}

}  // namespace sluice
