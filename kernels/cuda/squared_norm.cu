#include "kernels/squared_norm.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int warps = 8;
constexpr int threads = warps * warp_size;

struct Shared {
  double partial[warps];
};

/// One block of threads for one block of the parameter space. fp32 within a thread's 256 elements,
/// fp64 between threads.
template <int N>
__global__ void __launch_bounds__(threads)
    squared_norm(double* partial, const float* in, std::int64_t count) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * SquaredNorm::block;
  const std::int64_t end = first + SquaredNorm::block < count ? first + SquaredNorm::block : count;
  float mine = 0;
  for (std::int64_t i = first + static_cast<std::int64_t>(threadIdx.x) * N; i < end;
       i += threads * N) {
    if (i + N <= end) {
      float values[N];
      load_floats(values, in + i);
#pragma unroll
      for (int j = 0; j < N; ++j)
        mine += values[j] * values[j];
    } else {
      for (std::int64_t j = i; j < end; ++j)
        mine += in[j] * in[j];
    }
  }
  const double total = block_sum<warps>(static_cast<double>(mine), shared_memory<Shared>().partial);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

}  // namespace

void launch_cuda(const SquaredNorm& op, Stream stream) {
  const std::int64_t count = op.in.size();
  const auto kernel = aligned(16, {op.in}) ? squared_norm<4> : squared_norm<1>;
  launch(kernel, {pieces(count, SquaredNorm::block)}, {threads}, sizeof(Shared), stream,
         op.partial.data<double>(), op.in.data<float>(), count);
}

}  // namespace sluice
