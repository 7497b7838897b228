#include "kernels/cross_entropy.h"

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int warps = 16;
constexpr int threads = warps * warp_size;

struct Shared {
  float maxima[warps];
  float sums[warps];
};

/// A running maximum, and the sum of exp(x - maximum) so far (Milakov & Gimelshein, "Online
/// normalizer calculation for softmax", 2018).
struct Online {
  float top = -INFINITY;
  float sum = 0;

  __device__ void add(float x) {
    if (x == -INFINITY) return;  // impossible, and -inf - -inf would be NaN
    const float higher = maximum(top, x);
    if (higher != top) sum *= exp2_fast((top - higher) * log2_e);
    top = higher;
    sum += exp2_fast((x - top) * log2_e);
  }
};

/// One block a row: a pass for the normaliser, a second that writes the gradient, where `gradient`
/// is given. N logits a thread at a time.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    cross_entropy(float* losses, const float* logits, std::int64_t logits_stride, T* gradient,
                  std::int64_t gradient_stride, const std::int32_t* targets,
                  std::int64_t vocabulary, std::int64_t padding, float scale) {
  auto& shared = shared_memory<Shared>();
  const std::int64_t row = blockIdx.x;
  const float* x = logits + row * logits_stride;
  const std::int32_t target = targets[row];
  const float at_target = x[target];
  const std::int64_t packed = vocabulary / N * N;

  Online mine;
  for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * N; j < packed; j += threads * N) {
    float values[N];
    load_floats(values, x + j);
#pragma unroll
    for (int i = 0; i < N; ++i)
      mine.add(values[i]);
  }
  if (packed + threadIdx.x < vocabulary) mine.add(x[packed + threadIdx.x]);
  const float top = block_max<warps>(mine.top, shared.maxima);
  const float shrink = exp2_fast((mine.top - top) * log2_e);
  const float sum = block_sum<warps>(mine.sum * shrink, shared.sums);
  if (threadIdx.x == 0) losses[row] = logf(sum) + top - at_target;
  if (gradient == nullptr) return;

  T* out = gradient + row * gradient_stride;
  const float factor = scale / sum;
  const auto slope = [&](float value, std::int64_t j) {
    const float p = exp2_fast((value - top) * log2_e);
    // From the unrounded probability: in 16 bits 1 - p would lose a small p.
    return j == target ? scale * (p / sum - 1.0f) : p * factor;
  };
  // The gradient may lie over the logits, in fewer bytes: what a round of the block writes was
  // read in this round or before, and the barrier keeps the order.
  const std::int64_t end = vocabulary + padding;
  for (std::int64_t base = 0; base < end; base += threads * N) {
    const std::int64_t j = base + static_cast<std::int64_t>(threadIdx.x) * N;
    float values[N];
    if (j + N <= vocabulary) {
      load_floats(values, x + j);
#pragma unroll
      for (int i = 0; i < N; ++i)
        values[i] = slope(values[i], j + i);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        values[i] = j + i < vocabulary ? slope(x[j + i], j + i) : 0.0f;
    }
    __syncthreads();
    if (j + N <= end) {
      store_floats(out + j, values);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (j + i < end) out[j + i] = from_float<T>(values[i]);
    }
  }
}

}  // namespace

void launch_cuda(const CrossEntropy& op, Stream stream) {
  const std::int64_t rows = op.logits.dim(0);
  const std::int64_t vocabulary = op.logits.dim(1);
  dispatch(op.gradient ? op.gradient.dtype : DType::f32, [&]<class T>() {
    const bool packed = aligned(16, {op.logits, op.gradient});
    launch(packed ? cross_entropy<T, 4> : cross_entropy<T, 1>, {static_cast<unsigned>(rows)},
           {threads}, sizeof(Shared), stream, op.losses.data<float>(), op.logits.data<float>(),
           op.logits.stride(0), op.gradient ? op.gradient.data<T>() : nullptr,
           op.gradient ? op.gradient.stride(0) : 0, op.targets.data<std::int32_t>(), vocabulary,
           op.padding, static_cast<float>(op.gradient_scale));
  });
}

}  // namespace sluice
