#include "kernels/dropout.h"

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 256;

/// N elements of a sample a thread, of which four share a counter of the random numbers.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    drop(T* out, const T* in, std::int64_t size, std::int64_t groups, std::int64_t samples,
         DropoutMask mask) {
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t sample = task / groups;
  if (sample >= samples) return;
  const std::int64_t first = task % groups * N;
  const std::int64_t at = sample * size + first;
  const float scale = mask.scale();
  const std::uint32_t threshold = mask.threshold();
  float values[N];
  load_floats(values, in + at);
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const auto words = philox(mask.key, static_cast<std::uint64_t>((first + i) / 4),
                              static_cast<std::uint64_t>(mask.first_sample + sample));
#pragma unroll
    for (int j = 0; j < 4 && i + j < N; ++j) {
      // Where N is 1, the element's own word of the four.
      const auto word = static_cast<std::size_t>((first + i + j) % 4);
      values[i + j] = words[word] >= threshold ? values[i + j] * scale : 0.0f;
    }
  }
  store_floats(out + at, values);
}

}  // namespace

void launch_cuda(const Dropout& op, Stream stream) {
  const std::int64_t samples = op.in.dim(0);
  if (op.in.size() == 0) return;
  const std::int64_t size = op.in.size() / samples;
  dispatch(op.in.dtype, [&]<class T>() {
    const auto start = [&](auto kernel, std::int64_t elements) {
      const std::int64_t groups = size / elements;
      launch(kernel, {pieces(samples * groups, threads)}, {threads}, 0, stream, op.out.data<T>(),
             op.in.data<T>(), size, groups, samples, op.mask);
    };
    if (size % 8 == 0 && aligned(16, {op.out, op.in}))
      start(drop<T, 8>, 8);
    else
      start(drop<T, 1>, 1);
  });
}

}  // namespace sluice
