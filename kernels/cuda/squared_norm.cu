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

/// One thread block per block of elements. Sums are fp32 within a thread's share and fp64 across
/// threads.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    squared_norm(double* partial, const T* in, std::int64_t count, std::int64_t block) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * block;
  const std::int64_t end = first + block < count ? first + block : count;
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
      for (std::int64_t j = i; j < end; ++j) {
        const float value = to_float(in[j]);
        mine += value * value;
      }
    }
  }
  const double total = block_sum<warps>(static_cast<double>(mine), shared_memory<Shared>().partial);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

}  // namespace

void launch_cuda(const SquaredNorm& op, Stream stream) {
  const std::int64_t count = op.in.size();
  const auto launch_for = [&]<class T>() {
    const bool packed = aligned(4 * sizeof(T), {op.in}) && op.block % 4 == 0;
    launch(packed ? squared_norm<T, 4> : squared_norm<T, 1>, {pieces(count, op.block)}, {threads},
           sizeof(Shared), stream, op.partial.data<double>(), op.in.data<T>(), count, op.block);
  };
  if (op.in.dtype == DType::bf16) return launch_for.template operator()<BFloat16>();
  launch_for.template operator()<float>();
}

}  // namespace sluice
