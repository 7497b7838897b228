#include "kernels/cuda/device/kernels.h"

#include <algorithm>

#include "kernels/cuda/convert.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int threads = 256;

template <class Out, class Bias>
__global__ void __launch_bounds__(threads)
    add_bias_kernel(Out* out, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                    const Bias* bias) {
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (j >= columns) return;
  const float add = to_float(bias[j]);
  for (std::int64_t i = blockIdx.y; i < rows; i += gridDim.y) {
    Out& element = out[i * row_stride + j];
    element = from_float<Out>(to_float(element) + add);
  }
}

__global__ void empty() {}

}  // namespace

void add_bias(const View& out, const View& bias, Stream stream) {
  constexpr std::int64_t max_rows = 32768;  // limit of blocks; each loops over further rows
  const auto grid_rows = static_cast<unsigned>(std::min(out.dim(0), max_rows));
  dispatch(out.dtype, [&]<class Out>() {
    dispatch(bias.dtype, [&]<class Bias>() {
      launch(add_bias_kernel<Out, Bias>, {pieces(out.dim(1), threads), grid_rows}, {threads}, 0,
             stream, out.data<Out>(), out.dim(0), out.dim(1), out.stride(0), bias.data<Bias>());
    });
  });
}

std::string image() {
  cudaFuncAttributes attributes{};
  SLUICE_CUDA_CHECK(cudaFuncGetAttributes(&attributes, empty));
  const bool compiled_here = attributes.binaryVersion != attributes.ptxVersion;
  return (compiled_here ? "PTX of sm_" : "sm_") + std::to_string(attributes.ptxVersion);
}

}  // namespace sluice::cuda
