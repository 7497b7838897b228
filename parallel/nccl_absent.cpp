// The NCCL of a build without CUDA or without its header: nothing but the refusal.

#include "kernels/base/error.h"
#include "parallel/nccl_backend.h"

namespace sluice {
namespace {

constexpr const char* reason =
    "this program was built without NCCL; build it where the CUDA toolkit and the package "
    "libnccl-dev are installed";

}  // namespace

std::string nccl_version(std::string* why) {
  if (why != nullptr) *why = reason;
  return {};
}

std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<Transport>, const DevicePtr&, double) {
  fail(reason, ErrorKind::usage);
}

}  // namespace sluice
