#include "kernels/copy_columns.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr unsigned threads = 256;

/// A thread copies N columns of a row. `packs` and `packs_of_row`: in all, and of a row.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    copy_columns(T* out, const T* in, std::int64_t packs, std::int64_t packs_of_row,
                 std::int64_t out_stride, std::int64_t in_stride) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (pack >= packs) return;
  const std::int64_t row = pack / packs_of_row, column = pack % packs_of_row * N;
  float values[N];
  load_floats(values, in + row * in_stride + column);
  store_floats(out + row * out_stride + column, values);
}

}  // namespace

void launch_cuda(const CopyColumns& op, Stream stream) {
  const std::int64_t out_stride = op.out.dim(-1), in_stride = op.in.dim(-1);
  dispatch(op.in.dtype, [&]<class T>() {
    const bool packed =
        aligned(16, {op.in, op.out}) &&
        (op.columns | op.in_first | op.out_first | in_stride | out_stride) % wide<T> == 0;
    const std::int64_t of_row = op.columns / (packed ? wide<T> : 1), packs = op.in.rows() * of_row;
    if (packs == 0) return;
    launch(packed ? copy_columns<T, wide<T>> : copy_columns<T, 1>, {pieces(packs, threads)},
           {threads}, 0, stream, op.out.data<T>() + op.out_first, op.in.data<T>() + op.in_first,
           packs, of_row, out_stride, in_stride);
  });
}

}  // namespace sluice
