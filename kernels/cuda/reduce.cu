#include "kernels/reduce.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int warps = 16;
constexpr int threads = warps * warp_size;

/// One block, because the numbers are few (one loss per token). Each thread adds its own in order,
/// then the threads' sums are added in a fixed tree.
__global__ void __launch_bounds__(threads)
    sum(float* out, const float* in, std::int64_t count, double scale, bool accumulate) {
  struct Shared {
    double partial[warps];
  };
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += threads)
    mine += static_cast<double>(in[i]);
  const double total = block_sum<warps>(mine, shared_memory<Shared>().partial) * scale;
  if (threadIdx.x == 0)
    *out = static_cast<float>(accumulate ? static_cast<double>(*out) + total : total);
}

}  // namespace

void launch_cuda(const Sum& op, Stream stream) {
  launch(sum, {1}, {threads}, warps * sizeof(double), stream, op.out.data<float>(),
         op.in.data<float>(), op.in.size(), op.scale, op.accumulate);
}

}  // namespace sluice
