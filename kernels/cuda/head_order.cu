#include "kernels/head_order.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr unsigned threads = 256;

/// A thread copies N columns of a head.
template <class T, int N>
__global__ void __launch_bounds__(threads) sort_heads(T* out, const T* in, std::int64_t packs,
                                                      int heads, int packs_of_head, bool inverse) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (pack >= packs) return;
  const std::int64_t vector = pack / packs_of_head;  // of a head, in the order of `in`
  const std::int64_t row = vector / (3 * heads);
  const int place = static_cast<int>(vector % (3 * heads));
  const int to = inverse ? place % heads * 3 + place / heads : place % 3 * heads + place / 3;
  const std::int64_t target = (row * 3 * heads + to) * packs_of_head + pack % packs_of_head;
  float values[N];
  load_floats(values, in + pack * N);
  store_floats(out + target * N, values);
}

}  // namespace

void launch_cuda(const HeadOrder& op, Stream stream) {
  const std::int64_t width = op.in.dim(-1) / (3 * op.heads);
  dispatch(op.in.dtype, [&]<class T>() {
    const bool packed = width % wide<T> == 0 && aligned(16, {op.in, op.out});
    const std::int64_t each = packed ? wide<T> : 1, packs = op.in.size() / each;
    launch(packed ? sort_heads<T, wide<T>> : sort_heads<T, 1>, {pieces(packs, threads)}, {threads},
           0, stream, op.out.data<T>(), op.in.data<T>(), packs, op.heads,
           static_cast<int>(width / each), op.inverse);
  });
}

}  // namespace sluice
