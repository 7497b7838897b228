#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <string>

#include "kernels/base/error.h"
#include "kernels/cuda/device/check.h"

namespace sluice::cuda {
namespace {

/// The driver's function: programs are not linked with the driver, since they start without one.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  SLUICE_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                     cudaEnableDefault, &found));
#else
  SLUICE_CUDA_CHECK(
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess)
    fail(
        "the NVIDIA driver has no cuTensorMapEncodeTiled; install one of CUDA 12 or newer, or use "
        "--attention mma",
        ErrorKind::runtime);
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

TensorMap tensor_map(const MappedTensor& tensor) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4], steps[4];
  for (int d = 0; d < 4; ++d) {
    sizes[d] = static_cast<cuuint64_t>(tensor.sizes[d]);
    if (d < 3) strides[d] = static_cast<cuuint64_t>(tensor.strides[d]);
    box[d] = tensor.box[d];
    steps[d] = 1;
  }
  TensorMap map;
  const CUresult status =
      encode(&map,
             tensor.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             4, const_cast<void*>(tensor.address), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail("the driver refused the description of a tensor for TMA (status " +
             std::to_string(static_cast<int>(status)) + "); use --attention mma",
         ErrorKind::runtime);
  return map;
}

}  // namespace sluice::cuda
