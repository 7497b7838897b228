#include "kernels/sample.h"

#include <bit>
#include <limits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int warps = 16;
constexpr int threads = warps * warp_size;

/// Orders the tokens of a row without ties: the larger logit first, the first token among equals.
using Key = unsigned long long;

__device__ __forceinline__ Key key_of(float logit, std::int64_t token) {
  // +0 and -0 become one value.
  const auto bits = std::bit_cast<std::uint32_t>(logit == 0 ? 0.0f : logit);
  // Maps floats to unsigned numbers of the same order; negative ones are inverted.
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(token));
}
/// The key of NaN and +infinity, above those of all numbers.
constexpr Key no_number = ~Key{0};
constexpr float largest = std::numeric_limits<float>::max();
/// A key below those of all finite numbers has -infinity.
constexpr Key lowest = Key{~std::bit_cast<std::uint32_t>(-largest)} << 32;
__device__ __forceinline__ std::int64_t token_of(Key key) {
  return 0xFFFFFFFFu - static_cast<std::uint32_t>(key);
}

struct Shared {
  Key keys[warps];
  double sums[2][warps];  ///< for threshold()
  double totals[warps];
  double stretches[threads];
  int chosen;
};

struct Row {
  const float* logits;
  std::int64_t vocabulary;
  float top;
  float inverse_temperature;

  __device__ double weight(std::int64_t i) const {
    return static_cast<double>(exp2_fast((logits[i] - top) * inverse_temperature * log2_e));
  }
};

/// Finds the largest key K for which the tokens with keys of at least K sum to `goal`: bit by bit,
/// with one pass over the row each. `measure(i)` is the contribution of token i.
template <class Measure>
__device__ Key threshold(const Row& row, double goal, Shared& shared, Measure&& measure) {
  Key found = 0;
  // The lower half holds the complement of the token, so bits that no token needs are ones.
  int token_bits = 1;
  while ((row.vocabulary >> token_bits) != 0)
    ++token_bits;
  int parity = 0;
  for (int bit = 63; bit >= 0; --bit, parity ^= 1) {
    if (bit == 31) {
      found |= 0xFFFFFFFFu >> token_bits << token_bits;
      bit = token_bits - 1;
    }
    const Key tried = found | Key{1} << bit;
    double mine = 0;
    for (std::int64_t i = threadIdx.x; i < row.vocabulary; i += threads)
      if (key_of(row.logits[i], i) >= tried) mine += measure(i);
    if (block_sum<warps>(mine, shared.sums[parity]) >= goal) found = tried;
  }
  return found;
}

/// Returns the largest key; 0 if there is none, or a logit is NaN or +infinity.
__device__ Key best_key(const Row& row, Shared& shared) {
  Key best = 0;
  for (std::int64_t i = threadIdx.x; i < row.vocabulary; i += threads) {
    const Key key = row.logits[i] <= largest ? key_of(row.logits[i], i) : no_number;
    best = key > best ? key : best;
  }
  best = warp_fold(best, [](Key a, Key b) { return b > a ? b : a; });
  if (threadIdx.x % warp_size == 0) shared.keys[threadIdx.x / warp_size] = best;
  __syncthreads();
  for (const Key key : shared.keys)
    best = key > best ? key : best;
  return best < lowest || best == no_number ? 0 : best;
}

/// Finds the first token, in vocabulary order, at which the running sum of the candidates' weights
/// exceeds `point` times their total. Each thread takes a contiguous part of the row.
__device__ void choose(const Row& row, Key last_candidate, float point, Shared& shared) {
  const std::int64_t stretch = (row.vocabulary + threads - 1) / threads;
  const std::int64_t begin = static_cast<std::int64_t>(threadIdx.x) * stretch;
  const std::int64_t end = begin + stretch < row.vocabulary ? begin + stretch : row.vocabulary;
  const auto weight = [&](std::int64_t i) {
    return key_of(row.logits[i], i) >= last_candidate ? row.weight(i) : 0.0;
  };
  double mine = 0;
  for (std::int64_t i = begin; i < end; ++i)
    mine += weight(i);
  shared.stretches[threadIdx.x] = mine;
  __syncthreads();
  double before = 0, total = 0;
  for (int t = 0; t < threads; ++t) {
    if (t == static_cast<int>(threadIdx.x)) before = total;
    total += shared.stretches[t];
  }
  const double goal = static_cast<double>(point) * total;
  if (mine > 0 && before <= goal && goal < before + mine) {
    double sum = before;
    for (std::int64_t i = begin; i < end; ++i) {
      sum += weight(i);
      if (sum > goal) {
        shared.chosen = static_cast<int>(i);
        break;
      }
    }
  }
}

/// One block per row. For several blocks on a multiprocessor the compiler would spill registers.
__global__ void __launch_bounds__(threads, 1)
    sample(std::int32_t* tokens, const float* logits, const float* points, std::int64_t vocabulary,
           float temperature, std::int64_t top_k, float top_p) {
  auto& shared = shared_memory<Shared>();
  Row row{.logits = logits + blockIdx.x * vocabulary,
          .vocabulary = vocabulary,
          .top = 0,
          .inverse_temperature = 0};
  const Key best = best_key(row, shared);
  if (threadIdx.x == 0) shared.chosen = best == 0 ? -1 : static_cast<int>(token_of(best));
  if (best == 0 || temperature <= 0) {
    if (threadIdx.x == 0) tokens[blockIdx.x] = shared.chosen;
    return;
  }
  row.top = row.logits[token_of(best)];
  row.inverse_temperature = 1.0f / temperature;
  Key last = 0;
  if (top_k > 0 && top_k < vocabulary)
    last = threshold(row, static_cast<double>(top_k), shared, [](std::int64_t) { return 1.0; });
  if (top_p < 1) {
    const auto weight = [&](std::int64_t i) {
      return key_of(row.logits[i], i) >= last ? row.weight(i) : 0.0;
    };
    double mine = 0;
    for (std::int64_t i = threadIdx.x; i < vocabulary; i += threads)
      mine += weight(i);
    const double total = block_sum<warps>(mine, shared.totals);
    const Key nucleus = threshold(row, static_cast<double>(top_p) * total, shared, weight);
    last = nucleus > last ? nucleus : last;
    last = last < best ? last : best;
  }
  choose(row, last, points[blockIdx.x], shared);
  __syncthreads();
  if (threadIdx.x == 0) tokens[blockIdx.x] = shared.chosen;
}

}  // namespace

void launch_cuda(const SampleToken& op, Stream stream) {
  launch(sample, {static_cast<unsigned>(op.logits.dim(0))}, {threads}, sizeof(Shared), stream,
         op.tokens.data<std::int32_t>(), op.logits.data<float>(),
         op.points ? op.points.data<float>() : nullptr, op.logits.dim(1), op.temperature, op.top_k,
         op.top_p);
}

}  // namespace sluice
