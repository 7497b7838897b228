#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

#ifdef __CUDACC__
#include <cuda.h>
#else
#include "kernels/cuda/simt/tma.h"
#endif

namespace sluice::cuda {

/// How the copy unit of compute capability 9.0 (TMA) finds boxes of a tensor. It is a kernel's
/// argument, declared `const __grid_constant__`.
#ifdef __CUDACC__
using TensorMap = CUtensorMap;
#else
using TensorMap = simt::TensorMap;
#endif

/// A tensor of 16-bit elements with four dimensions, the innermost first, whose elements follow
/// each other there. Its address and its other strides are multiples of 16 bytes.
struct MappedTensor {
  const void* address;
  DType dtype;
  std::int64_t sizes[4];
  std::int64_t strides[3];  ///< of dimensions 1 to 3, in bytes
  unsigned box[4];          ///< elements of a box; 64 in the innermost dimension
};
TensorMap tensor_map(const MappedTensor& tensor);

}  // namespace sluice::cuda
