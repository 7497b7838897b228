#include "kernels/split_cross_entropy.h"

#include "kernels/cuda/cross_entropy_row.h"
#include "kernels/cuda/dispatch.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int partials_of_row = 3;

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
  write_gradient<N>(gradient + row * gradient_stride, logits + row * logits_stride, columns,
                    targets[row] - first, whole, padding, scale);
}

}  // namespace

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
