#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/error.h"

namespace sluice::cuda {

/// Throws Error with the call, CUDA's description of the status, file and line, and the remedy.
[[noreturn]] void fail_cuda(cudaError_t status, const char* call, SourceLine where);
/// Same for a cublasStatus_t, passed as a number so that kernels need not include cuBLASLt.
[[noreturn]] void fail_cublas(int status, const char* call, SourceLine where);

/// Returns the user's remedy for a status, as a clause to follow a semicolon.
const char* hint_for(cudaError_t status);

}  // namespace sluice::cuda

// These are macros, so that a message can name the call. Private to kernels/cuda.

#define SLUICE_CUDA_CHECK(call)                                                         \
  do {                                                                                  \
    const cudaError_t sluice_status = (call);                                           \
    if (sluice_status != cudaSuccess) [[unlikely]]                                      \
      ::sluice::cuda::fail_cuda(sluice_status, #call, ::sluice::SourceLine::current()); \
  } while (false)

#define SLUICE_CUBLAS_CHECK(call)                                         \
  do {                                                                    \
    const cublasStatus_t sluice_status = (call);                          \
    if (sluice_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]              \
      ::sluice::cuda::fail_cublas(static_cast<int>(sluice_status), #call, \
                                  ::sluice::SourceLine::current());       \
  } while (false)
