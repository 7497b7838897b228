#pragma once

#include <cudnn_ops.h>

#include <string>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"

// The macros are private to bench/kernels/cudnn_*: functions are named once, calls name themselves.

#define SLUICE_CUDNN_FUNCTIONS(each)  \
  each(cudnnGetVersion);              \
  each(cudnnGetErrorString);          \
  each(cudnnCreate);                  \
  each(cudnnSetStream);               \
  each(cudnnCreateTensorDescriptor);  \
  each(cudnnSetTensor4dDescriptor);   \
  each(cudnnDestroyTensorDescriptor); \
  each(cudnnSoftmaxForward);          \
  each(cudnnSoftmaxBackward);         \
  each(cudnnBackendCreateDescriptor); \
  each(cudnnBackendSetAttribute);     \
  each(cudnnBackendGetAttribute);     \
  each(cudnnBackendFinalize);         \
  each(cudnnBackendExecute);          \
  each(cudnnBackendDestroyDescriptor)

/// Calls a function of cuDNN; throws Error where its status is not success.
#define SLUICE_CUDNN(function, ...) \
  ::sluice::bench::check_cudnn(::sluice::bench::cudnn().function(__VA_ARGS__), #function)

namespace sluice::bench {

/// cuDNN as it was found when the program ran. The program is not linked to it, so that it starts
/// where there is none.
struct CudnnLibrary {
#define SLUICE_CUDNN_MEMBER(function) decltype(&::function) function = nullptr
  SLUICE_CUDNN_FUNCTIONS(SLUICE_CUDNN_MEMBER);
#undef SLUICE_CUDNN_MEMBER
};

/// Opens the library at the first call; false where that fails, and `why` says so.
bool has_cudnn(std::string& why);
/// Throws Error where has_cudnn is false.
const CudnnLibrary& cudnn();

/// Throws Error with the call and cuDNN's name of the status.
void check_cudnn(cudnnStatus_t status, const std::string& call);

/// The program's handle, on the stream's device and set to the stream.
cudnnHandle_t cudnn_handle(Stream stream);

/// Throws Error for what cuDNN has no name for.
cudnnDataType_t cudnn_type(DType dtype);

}  // namespace sluice::bench
