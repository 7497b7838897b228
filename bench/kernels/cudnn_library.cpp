#include "bench/kernels/cudnn_library.h"

#include <dlfcn.h>

#include "bench/kernels/case.h"
#include "kernels/base/error.h"
#include "kernels/cuda/device/stream.h"

namespace sluice::bench {
namespace {

struct Opened {
  CudnnLibrary library;
  std::string why;  ///< empty: the library is open
};

template <class Function>
void find(void* from, const char* name, Function& function, std::string& why) {
  function = reinterpret_cast<Function>(dlsym(from, name));
  if (function == nullptr && why.empty()) why = std::string("cuDNN has no ") + name;
}

Opened open_library() {
  Opened opened;
  static_assert(CUDNN_MAJOR == 9, "the name of the library has the major version of its headers");
  void* from = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (from == nullptr) {
    const char* said = dlerror();
    opened.why = said != nullptr ? said : "libcudnn.so.9 cannot be opened";
    return opened;
  }
#define SLUICE_CUDNN_FIND(function) find(from, #function, opened.library.function, opened.why)
  SLUICE_CUDNN_FUNCTIONS(SLUICE_CUDNN_FIND);
#undef SLUICE_CUDNN_FIND
  return opened;
}

/// The library is never closed: at the program's end the driver may be gone before it.
const Opened& opened() {
  static const Opened result = open_library();
  return result;
}

}  // namespace

bool has_cudnn(std::string& why) {
  why = opened().why;
  return why.empty();
}

const CudnnLibrary& cudnn() {
  if (!opened().why.empty()) fail(opened().why);
  return opened().library;
}

void check_cudnn(cudnnStatus_t status, const std::string& call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  fail("cuDNN failed with " + std::string(cudnn().cudnnGetErrorString(status)) + " in " + call);
}

cudnnHandle_t cudnn_handle(Stream stream) {
  cudaStream_t queue = cuda::handle_of(stream);  // selects the device of the handle
  static cudnnHandle_t handle = nullptr;
  if (handle == nullptr) SLUICE_CUDNN(cudnnCreate, &handle);
  SLUICE_CUDNN(cudnnSetStream, handle, queue);
  return handle;
}

cudnnDataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DType::f16:
      return CUDNN_DATA_HALF;
    default:
      fail("the rows of cuDNN have no " + label_of(dtype));
  }
}

}  // namespace sluice::bench
