#include "kernels/cross_entropy.h"

#include "kernels/cuda/cross_entropy_row.h"
#include "kernels/cuda/dispatch.h"

namespace sluice {
namespace {

using namespace cuda;

/// One block per row. The first pass computes the normalizer; the second writes the gradient, if
/// `gradient` is given.
template <class T, int N>
__global__ void __launch_bounds__(row_threads)
    cross_entropy(float* losses, const float* logits, std::int64_t logits_stride, T* gradient,
                  std::int64_t gradient_stride, const std::int32_t* targets,
                  std::int64_t vocabulary, std::int64_t padding, float scale) {
  auto& shared = shared_memory<RowShared>();
  const std::int64_t row = blockIdx.x;
  const float* x = logits + row * logits_stride;
  const std::int32_t target = targets[row];
  const float at_target = x[target];
  const Online whole = normalizer<N>(x, vocabulary, shared);
  if (threadIdx.x == 0) losses[row] = logf(whole.sum) + whole.top - at_target;
  if (gradient == nullptr) return;
  write_gradient<N>(gradient + row * gradient_stride, x, vocabulary, target, whole, padding, scale);
}

}  // namespace

void launch_cuda(const CrossEntropy& op, Stream stream) {
  const std::int64_t rows = op.logits.dim(0);
  const std::int64_t vocabulary = op.logits.dim(1);
  dispatch(op.gradient ? op.gradient.dtype : DType::f32, [&]<class T>() {
    const bool packed = aligned(16, {op.logits, op.gradient});
    launch(packed ? cross_entropy<T, 4> : cross_entropy<T, 1>, {static_cast<unsigned>(rows)},
           {row_threads}, sizeof(RowShared), stream, op.losses.data<float>(),
           op.logits.data<float>(), op.logits.stride(0),
           op.gradient ? op.gradient.data<T>() : nullptr, op.gradient ? op.gradient.stride(0) : 0,
           op.targets.data<std::int32_t>(), vocabulary, op.padding,
           static_cast<float>(op.gradient_scale));
  });
}

}  // namespace sluice
