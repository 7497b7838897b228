#include "kernels/cuda/device/check.h"

namespace sluice::cuda {
namespace {

__global__ void empty() {}

}  // namespace

void require_image() {
  cudaFuncAttributes attributes{};
  SLUICE_CUDA_CHECK(cudaFuncGetAttributes(&attributes, empty));
}

}  // namespace sluice::cuda
