#include "kernels/dropout.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 256;

/// N elements of a sample per thread; four share one counter of the random numbers. A sample has
/// `groups` groups of N and the launch has `count`, the first of which is the batch's first_group.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    drop(T* out, const T* in, std::int64_t first_group, std::int64_t groups, std::int64_t count,
         DropoutMask mask) {
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (task >= count) return;
  const std::int64_t sample = (first_group + task) / groups;
  const std::int64_t first = (first_group + task) % groups * N;
  const std::int64_t at = task * N;
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
      // If N is 1, this selects the element's own word of the four.
      const auto word = static_cast<std::size_t>((first + i + j) % 4);
      values[i + j] = words[word] >= threshold ? values[i + j] * scale : 0.0f;
    }
  }
  store_floats(out + at, values);
}

}  // namespace

void launch_cuda(const Dropout& op, Stream stream) {
  const std::int64_t count = op.in.size();
  if (count == 0) return;
  const std::int64_t size = op.per_sample > 0 ? op.per_sample : count / op.in.dim(0);
  dispatch(op.in.dtype, [&]<class T>() {
    const auto start = [&](auto kernel, std::int64_t elements) {
      launch(kernel, {pieces(count / elements, threads)}, {threads}, 0, stream, op.out.data<T>(),
             op.in.data<T>(), op.first / elements, size / elements, count / elements, op.mask);
    };
    if (size % 8 == 0 && op.first % 8 == 0 && count % 8 == 0 && aligned(16, {op.out, op.in}))
      start(drop<T, 8>, 8);
    else
      start(drop<T, 1>, 1);
  });
}

}  // namespace sluice
