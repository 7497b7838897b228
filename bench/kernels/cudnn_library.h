#pragma once

#include <cudnn_ops.h>

#include <string>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

// These macros are private to bench/kernels/cudnn_*: each function is named once.

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

/// Calls a function of cuDNN; throws Error if its status is not success.
#define SLUICE_CUDNN(function, ...) \
  ::sluice::bench::check_cudnn(::sluice::bench::cudnn().function(__VA_ARGS__), #function)

namespace sluice::bench {

/// cuDNN, opened at run time. The program is not linked to it, so that it also starts on machines
/// without cuDNN.
struct CudnnLibrary {
#define SLUICE_CUDNN_MEMBER(function) decltype(&::function) function = nullptr
  SLUICE_CUDNN_FUNCTIONS(SLUICE_CUDNN_MEMBER);
#undef SLUICE_CUDNN_MEMBER
};

/// Opens the library at the first call. If that fails, returns false and sets `why`.
bool has_cudnn(std::string& why);
/// Throws Error if has_cudnn() is false.
const CudnnLibrary& cudnn();

/// Throws Error with the call and cuDNN's name of the status.
void check_cudnn(cudnnStatus_t status, const std::string& call);

/// Returns the program's handle, made for the stream's device and set to the stream.
cudnnHandle_t cudnn_handle(Stream stream);

/// Throws Error for a dtype that cuDNN does not have.
cudnnDataType_t cudnn_type(DType dtype);

}  // namespace sluice::bench
