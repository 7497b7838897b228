// The GPU side of a build without CUDA: there is no GPU, and whoever wants one is told why.

#include "kernels/base/error.h"
#include "kernels/base/run.h"
#include "kernels/base/runtime.h"

namespace sluice {
namespace {

constexpr const char* reason =
    "this program was built without CUDA; use --device cpu, or build it where the CUDA toolkit is "
    "installed";

}  // namespace

void refuse_cuda() {
  fail(reason, ErrorKind::usage);
}

int cuda_devices(std::string* why) {
  if (why != nullptr) *why = reason;
  return 0;
}

std::string cuda_uuid(int) {
  refuse_cuda();
}

std::unique_ptr<Runtime> make_cuda_runtime(int) {
  refuse_cuda();
}

}  // namespace sluice
