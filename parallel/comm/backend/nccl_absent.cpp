// Replaces the NCCL backend in a build without CUDA or without NCCL's header: it only refuses.

#include "kernels/base/error.h"
#include "parallel/comm/backend/nccl_backend.h"

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

std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<Transport>, const DevicePtr&, double,
                                           const std::function<std::string(const std::string&)>&) {
  fail(reason, ErrorKind::usage);
}

}  // namespace sluice
