#include "kernels/sgd.h"

#include "kernels/base/fused.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/master_weight.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 256;

struct Coefficients {
  float momentum, keep, rate;
};

template <class W>
__global__ void __launch_bounds__(threads)
    update(float* master, float* velocity, const float* grad, W* working, const float* scale_at,
           std::int64_t count, Coefficients c) {
  const float scale = scale_at != nullptr ? *scale_at : 1.0f;
  if (!(scale - scale == 0)) return;  // not finite: the whole update is skipped
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  velocity[i] = fused(c.momentum, velocity[i], scale * grad[i]);
  const float w = fused(master[i], c.keep, -c.rate * velocity[i]);
  master[i] = w;
  if (working != nullptr) working[i] = working_weight<W>(w);
}

}  // namespace

void launch_cuda(const Sgd& op, Stream stream) {
  const std::int64_t count = op.master.size();
  const Coefficients c{.momentum = static_cast<float>(op.momentum),
                       .keep = static_cast<float>(fused(-op.rate, op.weight_decay, 1.0)),
                       .rate = static_cast<float>(op.rate)};
  dispatch_working(op.master.dtype, op.working, [&]<class W>() {
    launch(update<W>, {pieces(count, threads)}, {threads}, 0, stream, op.master.data<float>(),
           op.velocity.data<float>(), op.grad.data<float>(),
           op.working ? op.working.data<W>() : nullptr,
           op.gradient_scale ? op.gradient_scale.data<float>() : nullptr, count, c);
  });
}

}  // namespace sluice
