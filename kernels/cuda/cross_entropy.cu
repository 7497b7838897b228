#include "kernels/cross_entropy.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

// One block has a row of logits, the whole vocabulary or a part of it. Each thread takes N logits
// at a time.

constexpr int partials_of_row = 3;
constexpr int row_warps = 16;
constexpr int row_threads = row_warps * warp_size;

/// Loads of a thread before it uses the first: 40 KiB of a block are under way, and 50257 logits
/// take five rounds.
constexpr int loads_ahead = 5;

/// If the row of logits is kept, it follows this in shared memory.
struct RowShared {
  float maxima[row_warps];
  float sums[row_warps];

  __device__ float* row() { return reinterpret_cast<float*>(this + 1); }
};

/// Running maximum and the sum of exp(x - maximum) so far (Milakov & Gimelshein, "Online normalizer
/// calculation for softmax", 2018).
struct Online {
  float top = -INFINITY;
  float sum = 0;

  /// Adds the numbers with one change of the maximum. -infinity is the logit of an impossible
  /// token.
  template <int rows, int N>
  __device__ __forceinline__ void add(const float (&x)[rows][N]) {
    float higher = top;
#pragma unroll
    for (int i = 0; i < rows * N; ++i)
      higher = maximum(higher, x[i / N][i % N]);
    const float base = higher == -INFINITY ? 0.0f : higher;  // -inf - -inf would be NaN
    sum *= exp2_fast((top - base) * log2_e);
    top = higher;
#pragma unroll
    for (int i = 0; i < rows * N; ++i)
      sum += exp2_fast((x[i / N][i % N] - base) * log2_e);
  }
};

/// Maximum and sum of a whole row; -infinity and 0 for no columns. `keep`: copies the row to shared
/// memory, complete after the next barrier.
template <int N, bool keep = false>
__device__ __forceinline__ Online normalizer(const float* x, std::int64_t columns,
                                             RowShared& shared) {
  constexpr std::int64_t round = row_threads * N;
  const std::int64_t packed = columns / N * N;
  Online mine;
  for (std::int64_t base = static_cast<std::int64_t>(threadIdx.x) * N; base < packed;
       base += loads_ahead * round) {
    float values[loads_ahead][N];
#pragma unroll
    for (int ahead = 0; ahead < loads_ahead; ++ahead) {
#pragma unroll
      for (float& value : values[ahead])
        value = -INFINITY;
      if (base + ahead * round < packed) load_floats(values[ahead], x + base + ahead * round);
    }
    mine.add(values);
#pragma unroll
    for (int ahead = 0; ahead < loads_ahead && keep; ++ahead)
      if (base + ahead * round < packed)
        store_floats(shared.row() + base + ahead * round, values[ahead]);
  }
  if (const std::int64_t j = packed + threadIdx.x; j < columns) {
    const float value[1][1] = {{x[j]}};
    mine.add(value);
    if constexpr (keep) shared.row()[j] = value[0][0];
  }
  Online row;
  row.top = block_max<row_warps>(mine.top, shared.maxima);
  const float base = row.top == -INFINITY ? 0.0f : row.top;  // 0 if all are impossible, as above
  const float shrink = exp2_fast((mine.top - base) * log2_e);
  row.sum = block_sum<row_warps>(mine.sum * shrink, shared.sums);
  return row;
}

/// Writes scale * (softmax - one-hot), using the normalizer of the whole vocabulary, then `padding`
/// zeros. `target` may be outside of these columns. `over`: the gradient may overlay the logits, in
/// fewer bytes. Columns are counted in int, because the ids of tokens are i32.
template <int N, bool over, class T>
__device__ __forceinline__ void write_gradient(T* out, const float* x, int columns,
                                               std::int64_t target, const Online& whole,
                                               int padding, float scale) {
  const float factor = scale / whole.sum;
  const auto exponential = [&](float value) { return exp2_fast((value - whole.top) * log2_e); };
  const int own = 0 <= target && target < columns ? static_cast<int>(target) : -1;
  // Uses the unrounded probability, because in 16 bits 1 - p would lose a small p.
  const float at_own = own >= 0 ? scale * (exponential(x[own]) / whole.sum - 1.0f) : 0.0f;
  const int end = columns + padding;
  for (int base = 0; base < end; base += row_threads * N) {
    const int j = base + static_cast<int>(threadIdx.x) * N;
    float values[N];
    if (j + N <= columns) {
      load_floats(values, x + j);
#pragma unroll
      for (int i = 0; i < N; ++i)
        values[i] = exponential(values[i]) * factor;
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        values[i] = j + i < columns ? exponential(x[j + i]) * factor : 0.0f;
    }
    if (j <= own && own < j + N) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (j + i == own) values[i] = at_own;
    }
    // A round of the block only overwrites logits that were read in this round or before; the
    // barrier keeps that order.
    if constexpr (over) __syncthreads();
    if (j + N <= end) {
      store_floats(out + j, values);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (j + i < end) out[j + i] = from_float<T>(values[i]);
    }
  }
}

/// Writes the loss and the gradient of a row without a target.
template <class T>
__device__ __forceinline__ void write_zeros(float& loss, T* gradient, std::int64_t columns) {
  if (threadIdx.x == 0) loss = 0;
  if (gradient == nullptr) return;
  for (std::int64_t j = threadIdx.x; j < columns; j += row_threads)
    gradient[j] = from_float<T>(0.0f);
}

/// One block per row. The first pass computes the normalizer; the second writes the gradient, if
/// `gradient` is given. `keep`: the second one reads the logits from shared memory.
template <class T, int N, bool keep>
__global__ void __launch_bounds__(row_threads)
    cross_entropy(float* losses, const float* logits, std::int64_t logits_stride, T* gradient,
                  std::int64_t gradient_stride, const std::int32_t* targets,
                  std::int64_t vocabulary, std::int64_t padding, float scale) {
  auto& shared = shared_memory<RowShared>();
  const std::int64_t row = blockIdx.x;
  const float* x = logits + row * logits_stride;
  const std::int32_t target = targets[row];
  if (target < 0)
    return write_zeros(losses[row],
                       gradient == nullptr ? gradient : gradient + row * gradient_stride,
                       vocabulary + padding);
  const float at_target = x[target];
  const Online whole = normalizer<N, keep>(x, vocabulary, shared);
  if (threadIdx.x == 0) losses[row] = logf(whole.sum) + whole.top - at_target;
  if (gradient == nullptr) return;
  write_gradient<N, !keep>(gradient + row * gradient_stride, keep ? shared.row() : x,
                           static_cast<int>(vocabulary), target, whole, static_cast<int>(padding),
                           scale);
}

/// One block per row.
template <int N>
__global__ void __launch_bounds__(row_threads)
    find_partials(float* partials, const float* logits, std::int64_t logits_stride,
                  const std::int32_t* targets, std::int64_t first, std::int64_t columns) {
  auto& shared = shared_memory<RowShared>();
  const std::int64_t row = blockIdx.x;
  const float* x = logits + row * logits_stride;
  const Online part = normalizer<N>(x, columns, shared);
  if (threadIdx.x != 0) return;
  const std::int64_t target = targets[row] - first;
  float* out = partials + row * partials_of_row;
  out[0] = part.top;
  out[1] = part.sum;
  out[2] = 0 <= target && target < columns ? x[target] : 0.0f;
}

/// One block per row. Every thread combines the few partials by itself.
template <class T, int N>
__global__ void __launch_bounds__(row_threads)
    use_partials(float* losses, const float* logits, std::int64_t logits_stride, T* gradient,
                 std::int64_t gradient_stride, const std::int32_t* targets, const float* partials,
                 std::int64_t ranks, std::int64_t first, std::int64_t columns, std::int64_t padding,
                 float scale) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = targets[row];
  if (target < 0)
    return write_zeros(losses[row],
                       gradient == nullptr ? gradient : gradient + row * gradient_stride,
                       columns + padding);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * partials_of_row;
  const float* own = partials + row * partials_of_row;
  Online whole;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    whole.top = maximum(whole.top, own[rank * stride]);
  float at_target = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    whole.sum += own[rank * stride + 1] * exp2_fast((own[rank * stride] - whole.top) * log2_e);
    at_target += own[rank * stride + 2];
  }
  if (threadIdx.x == 0) losses[row] = logf(whole.sum) + whole.top - at_target;
  if (gradient == nullptr) return;
  write_gradient<N, true>(gradient + row * gradient_stride, logits + row * logits_stride,
                          static_cast<int>(columns), target - first, whole,
                          static_cast<int>(padding), scale);
}

}  // namespace

void launch_cuda(const CrossEntropy& op, Stream stream) {
  const std::int64_t rows = op.logits.dim(0);
  const std::int64_t vocabulary = op.logits.dim(1);
  dispatch(op.gradient ? op.gradient.dtype : DType::f32, [&]<class T>() {
    const bool packed = aligned(16, {op.logits, op.gradient});
    // 50257 logits fit from compute capability 9.0 on.
    const std::size_t kept_row =
        sizeof(RowShared) + static_cast<std::size_t>(vocabulary) * sizeof(float);
    const bool keep = packed && op.gradient && kept_row <= queue_of(stream).shared_limit;
    launch(keep     ? cross_entropy<T, 4, true>
           : packed ? cross_entropy<T, 4, false>
                    : cross_entropy<T, 1, false>,
           {static_cast<unsigned>(rows)}, {row_threads}, keep ? kept_row : sizeof(RowShared),
           stream, op.losses.data<float>(), op.logits.data<float>(), op.logits.stride(0),
           op.gradient ? op.gradient.data<T>() : nullptr, op.gradient ? op.gradient.stride(0) : 0,
           op.targets.data<std::int32_t>(), vocabulary, op.padding,
           static_cast<float>(op.gradient_scale));
  });
}

void launch_cuda(const CrossEntropyPartials& op, Stream stream) {
  const bool packed = aligned(16, {op.logits});
  launch(packed ? find_partials<4> : find_partials<1>, {static_cast<unsigned>(op.logits.dim(0))},
         {row_threads}, sizeof(RowShared), stream, op.partials.data<float>(),
         op.logits.data<float>(), op.logits.stride(0), op.targets.data<std::int32_t>(), op.first,
         op.logits.dim(1));
}

void launch_cuda(const CrossEntropyOfPartials& op, Stream stream) {
  dispatch(op.gradient ? op.gradient.dtype : DType::f32, [&]<class T>() {
    const bool packed = aligned(16, {op.logits, op.gradient});
    launch(packed ? use_partials<T, 4> : use_partials<T, 1>,
           {static_cast<unsigned>(op.logits.dim(0))}, {row_threads}, 0, stream,
           op.losses.data<float>(), op.logits.data<float>(), op.logits.stride(0),
           op.gradient ? op.gradient.data<T>() : nullptr, op.gradient ? op.gradient.stride(0) : 0,
           op.targets.data<std::int32_t>(), op.partials.data<float>(), op.partials.dim(0), op.first,
           op.logits.dim(1), op.padding, static_cast<float>(op.gradient_scale));
  });
}

}  // namespace sluice
