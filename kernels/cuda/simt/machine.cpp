// The GPUs of a machine that has none.
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <vector>

#include "kernels/base/runtime.h"
#include "kernels/cuda/simt/device.h"

namespace sluice {
namespace {

/// All processes see one GPU, unless a test gives each one of its own ("1"), or says which ones it
/// sees ("GPU-a,GPU-b").
std::vector<std::string> uuids() {
  const char* const each = std::getenv("SLUICE_SIMT_GPU_EACH");
  const std::string usual = simt::Options().uuid;
  if (each == nullptr) return {usual};
  const std::string given = each;
  if (given == "1") return {usual + "-" + std::to_string(::getpid())};
  std::vector<std::string> all;
  std::istringstream list(given);
  for (std::string uuid; std::getline(list, uuid, ',');)
    all.push_back(uuid);
  return all;
}

}  // namespace

int cuda_devices(std::string*) {
  return static_cast<int>(uuids().size());
}

std::string cuda_uuid(int index) {
  return uuids().at(static_cast<std::size_t>(index));
}

std::unique_ptr<Runtime> make_cuda_runtime(int index) {
  simt::Options options;
  options.uuid = cuda_uuid(index);
  return simt::make_runtime(options);
}

}  // namespace sluice
