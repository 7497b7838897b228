// The GPU of a machine that has none.
#include <unistd.h>

#include <cstdlib>

#include "kernels/base/runtime.h"
#include "kernels/cuda/simt/device.h"

namespace sluice {

int cuda_devices(std::string*) {
  return 1;
}

std::unique_ptr<Runtime> make_cuda_runtime(int) {
  simt::Options options;
  // Processes share the emulated GPU, unless a test says that each has one of its own.
  if (std::getenv("SLUICE_SIMT_GPU_EACH") != nullptr)
    options.uuid += "-" + std::to_string(::getpid());
  return simt::make_runtime(options);
}

}  // namespace sluice
