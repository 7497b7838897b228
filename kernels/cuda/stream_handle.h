#pragma once

#include "kernels/base/device.h"

struct CUstream_st;

namespace sluice::cuda {

/// Selects the stream's GPU for this thread and returns CUDA's own handle (cudaStream_t), which
/// CUDA's libraries take. The emulated GPU's handles are of use only to stand-ins for them.
CUstream_st* stream_handle(Stream stream);

}  // namespace sluice::cuda
