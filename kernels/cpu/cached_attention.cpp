#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention.h"
#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

template <class T>
void append(const CachedAttention& op) {
  const std::int64_t fresh = op.qkv.dim(1);
  const std::int64_t channels = op.key_cache.dim(2);
  const std::int64_t stride = op.qkv.dim(2);
  const std::int64_t capacity = op.key_cache.dim(1);
  for (std::int64_t b = 0; b < op.qkv.dim(0); ++b) {
    for (std::int64_t i = 0; i < fresh; ++i) {
      const T* keys = op.qkv.data<T>() + (b * fresh + i) * stride + op.out.dim(2);
      const std::int64_t at = (b * capacity + op.start + i) * channels;
      std::copy_n(keys, channels, op.key_cache.data<T>() + at);
      std::copy_n(keys + channels, channels, op.value_cache.data<T>() + at);
    }
  }
}

/// Attention for one new position of one head: a softmax over all positions up to its own.
template <class T>
void attend(const CachedAttention& op, std::int64_t b, std::int64_t i, std::int64_t h) {
  using A = Accumulator<T>;
  const std::int64_t fresh = op.qkv.dim(1);
  const std::int64_t channels = op.key_cache.dim(2);
  const std::int64_t width = channels / op.heads.key_value;
  const std::int64_t keys = op.start + i + 1;
  const std::int64_t offset = b * op.key_cache.dim(1) * channels + h / op.heads.group() * width;
  const T* query = op.qkv.data<T>() + (b * fresh + i) * op.qkv.dim(2) + h * width;
  const T* key = op.key_cache.data<T>() + offset;
  const T* value = op.value_cache.data<T>() + offset;
  const A scale = A{1} / std::sqrt(static_cast<A>(width));

  std::vector<A> weights(static_cast<std::size_t>(keys));
  std::vector<A> sum(static_cast<std::size_t>(width), A{0});
  A top = 0;
  for (std::int64_t j = 0; j < keys; ++j) {
    A score = 0;
#pragma omp simd reduction(+ : score)
    for (std::int64_t d = 0; d < width; ++d)
      score += static_cast<A>(query[d]) * static_cast<A>(key[j * channels + d]);
    score *= scale;
    weights[static_cast<std::size_t>(j)] = score;
    top = j == 0 ? score : std::max(top, score);
  }
  A* const by_key = weights.data();
  A total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t j = 0; j < keys; ++j) {
    by_key[j] = fast_exp(by_key[j] - top);
    total += by_key[j];
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    const A weight = weights[static_cast<std::size_t>(j)] / total;
#pragma omp simd
    for (std::int64_t d = 0; d < width; ++d)
      sum[static_cast<std::size_t>(d)] += weight * static_cast<A>(value[j * channels + d]);
  }
  T* out = op.out.data<T>() + (b * fresh + i) * op.out.dim(2) + h * width;
  for (std::int64_t d = 0; d < width; ++d)
    store(out[d], sum[static_cast<std::size_t>(d)]);
}

}  // namespace

void launch_cpu(const CachedAttention& op) {
  dispatch_floating(op.qkv.dtype, [&]<class T>() {
    append<T>(op);
    const std::int64_t fresh = op.qkv.dim(1);
    // A task has about this many elements; fewer are not worth a thread.
    constexpr std::int64_t elements = 1 << 16;
    const std::int64_t heads = op.heads.query;
    const std::int64_t of_head = (op.start + fresh) * (op.out.dim(2) / heads);
    const std::int64_t grain = std::max<std::int64_t>(1, elements / of_head);
    parallel_ranges(op.qkv.dim(0) * fresh * heads, grain,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t task = begin; task < end; ++task)
                        attend<T>(op, task / heads / fresh, task / heads % fresh, task % heads);
                    });
  });
}

}  // namespace sluice
