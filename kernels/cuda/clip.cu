#include "kernels/clip.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int warps = 16;
constexpr int threads = warps * warp_size;

struct Shared {
  double partial[warps];
};

__global__ void __launch_bounds__(threads)
    clip_factor(double* norm_out, float* factor_out, const double* partial, std::int64_t count,
                double limit, double loss_scale) {
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += threads)
    mine += partial[i];
  const double sum = block_sum<warps>(mine, shared_memory<Shared>().partial);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum) / loss_scale;
  double factor = limit > 0 && limit < norm + 1e-6 ? limit / (norm + 1e-6) : 1.0;
  factor /= loss_scale;
  const bool finite = norm - norm == 0;
  *norm_out = norm;
  *factor_out = finite ? static_cast<float>(factor) : NAN;
}

}  // namespace

void launch_cuda(const ClipFactor& op, Stream stream) {
  launch(clip_factor, {1}, {threads}, sizeof(Shared), stream, op.norm.data<double>(),
         op.factor.data<float>(), op.partial.data<double>(), op.partial.size(), op.limit,
         op.loss_scale);
}

}  // namespace sluice
