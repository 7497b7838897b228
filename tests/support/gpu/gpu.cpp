#include "tests/support/gpu/gpu.h"

#include <string>

#include "tests/support/skip.h"
#ifdef SLUICE_TEST_SIMT
#include "kernels/cuda/simt/device.h"
#include "tests/support/catch.h"
#endif

namespace sluice::test {

bool have_gpu() {
  std::string why;
  if (cuda_devices(&why) > 0) return true;
  skip("no CUDA device (" + why + ")");
  return false;
}

std::unique_ptr<Runtime> gpu_runtime([[maybe_unused]] std::uint64_t seed) {
#ifdef SLUICE_TEST_SIMT
  return simt::make_runtime({.seed = seed, .uuid = "GPU-simt-" + std::to_string(seed)});
#else
  return make_cuda_runtime(0);
#endif
}

DevicePtr open_gpu(std::uint64_t seed, std::size_t budget) {
  auto runtime = gpu_runtime(seed);
  const std::size_t workspace = runtime->workspace_bytes();
  return std::make_shared<DeviceContext>(std::move(runtime), budget + workspace);
}

DevicePtr device_of_rank(DeviceKind kind, int rank) {
  return kind == DeviceKind::cuda ? open_gpu(static_cast<std::uint64_t>(rank) + 1, memory_of_rank)
                                  : make_cpu_device(memory_of_rank);
}

}  // namespace sluice::test
