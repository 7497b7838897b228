#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>
#include <string>
#include <string_view>

#include "kernels/base/runtime.h"
#include "kernels/cuda/device/check.h"

namespace sluice {
namespace {

/// Formats a UUID as nvidia-smi does: "GPU-3f2a16bc-...".
std::string text_of(const cudaUUID_t& uuid, std::string_view kind) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text(kind);
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

/// Asks the driver for the UUID of the MIG instance that CUDA device `index` is, since the runtime
/// may give that of the whole GPU. Returns false if the driver has no such function.
bool ask_driver(int index, cudaUUID_t& uuid) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuDeviceGetUuid", &function, 11040,
                                                              cudaEnableDefault, &found);
#else
  const cudaError_t status =
      cudaGetDriverEntryPoint("cuDeviceGetUuid", &function, cudaEnableDefault, &found);
#endif
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();  // clears the error, which later calls would report
    return false;
  }
  // The device that CUDA counts as `index` is the driver's too.
  const auto get = reinterpret_cast<CUresult (*)(CUuuid*, CUdevice)>(function);
  return get(&uuid, index) == CUDA_SUCCESS;
}

}  // namespace

std::string cuda_uuid(int index) {
  cudaDeviceProp properties{};
  SLUICE_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  cudaUUID_t uuid = properties.uuid;
  const bool part =
      ask_driver(index, uuid) && std::memcmp(&uuid, &properties.uuid, sizeof uuid) != 0;
  return text_of(uuid, part ? "MIG" : "GPU");
}

}  // namespace sluice
