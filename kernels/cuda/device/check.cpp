#include "kernels/cuda/device/check.h"

#include <cublasLt.h>

#include <string>

namespace sluice::cuda {
namespace {

std::string place_of(const char* call, SourceLine where) {
  std::string file(where.file);
  const std::size_t folder = file.rfind("kernels/");  // the rest is the build machine's
  if (folder != std::string::npos) file.erase(0, folder);
  return std::string(call) + " at " + file + ":" + std::to_string(where.line);
}

}  // namespace

const char* hint_for(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "lower --gpu-memory or --micro-batch, or end what else uses this GPU";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "this program was compiled for the compute capabilities " SLUICE_CUDA_CAPABILITIES
             "; build it with this GPU's in SLUICE_CUDA_ARCHITECTURES";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
      return "a kernel that ran before it is wrong; run the program under compute-sanitizer to see "
             "which, and report it";
    case cudaErrorInsufficientDriver:
      return "there is no NVIDIA driver, or it is too old for the CUDA of this program; install a "
             "newer one or use --device cpu";
    case cudaErrorNoDevice:
      return "the driver shows no GPU to this program (CUDA_VISIBLE_DEVICES may hide it); use "
             "--device cpu";
    default:
      return "use --device cpu if it stays";
  }
}

void fail_cuda(cudaError_t status, const char* call, SourceLine where) {
  // Clears the error, which the runtime would report again. Faults of kernels remain.
  cudaGetLastError();
  fail(std::string("CUDA failed with ") + cudaGetErrorName(status) + " (" +
           cudaGetErrorString(status) + ") in " + place_of(call, where) + "; " + hint_for(status),
       ErrorKind::runtime, where);
}

void fail_cublas(int status, const char* call, SourceLine where) {
  const auto code = static_cast<cublasStatus_t>(status);
  // If an earlier kernel has faulted, reports that fault, which is what the user must know.
  if (code == CUBLAS_STATUS_EXECUTION_FAILED || code == CUBLAS_STATUS_INTERNAL_ERROR)
    if (const cudaError_t earlier = cudaPeekAtLastError(); earlier != cudaSuccess)
      fail_cuda(earlier, call, where);
  const bool memory = code == CUBLAS_STATUS_ALLOC_FAILED || code == CUBLAS_STATUS_NOT_INITIALIZED;
  fail(std::string("cuBLASLt failed with ") + cublasLtGetStatusName(code) + " (" +
           cublasLtGetStatusString(code) + ") in " + place_of(call, where) + "; " +
           hint_for(memory ? cudaErrorMemoryAllocation : cudaErrorUnknown),
       ErrorKind::runtime, where);
}

}  // namespace sluice::cuda
