#include "kernels/quantized.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 256;

/// Rows of whole blocks: a thread has N neighbouring elements, which share a scale.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    dequantize_blocks(T* out, const std::int8_t* codes, const Half* scales, std::int64_t count) {
  static_assert(quantized_block % N == 0);
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (at >= count) return;
  const float scale = to_float(scales[at / quantized_block]);
  const Pack<std::int8_t, N> pack = load<N>(codes + at);
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i)
    values[i] = scale * static_cast<float>(pack.values[i]);
  store_floats(out + at, values);
}

/// Any rows: a thread has one element.
template <class T>
__global__ void __launch_bounds__(threads)
    dequantize_elements(T* out, const std::int8_t* codes, const Half* scales, std::int64_t count,
                        std::int64_t columns) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (at >= count) return;
  const std::int64_t row = at / columns;
  const std::int64_t block = (at - row * columns) / quantized_block;
  const float scale = to_float(scales[row * quantized_blocks(columns) + block]);
  out[at] = from_float<T>(scale * static_cast<float>(codes[at]));
}

}  // namespace

void launch_cuda(const Dequantize& op, Stream stream) {
  check_quantized(op.out, op.codes, op.scales);
  const std::int64_t count = op.out.size(), columns = op.out.dim(-1);
  constexpr int wide_codes = 8;
  dispatch(op.out.dtype, [&]<class T>() {
    T* const out = op.out.data<T>();
    const std::int8_t* const codes = op.codes.data<std::int8_t>();
    const Half* const scales = op.scales.data<Half>();
    if (columns % quantized_block == 0 && aligned(16, {op.out}) && aligned(wide_codes, {op.codes}))
      launch(dequantize_blocks<T, wide_codes>, {pieces(count, threads * wide_codes)}, {threads}, 0,
             stream, out, codes, scales, count);
    else
      launch(dequantize_elements<T>, {pieces(count, threads)}, {threads}, 0, stream, out, codes,
             scales, count, columns);
  });
}

}  // namespace sluice
