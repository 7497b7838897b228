#pragma once

#include "kernels/base/device.h"

namespace sluice {

/// Throws Error (usage): this program was built without CUDA.
[[noreturn]] void refuse_cuda();

/// Runs a kernel; this is the program's only device dispatch. `Op` is a struct of the kernel's
/// arguments with free functions `launch_cpu(const Op&)` and `launch_cuda(const Op&, Stream)`. On
/// the CPU the work is done when the call returns, on a GPU in stream order. On `meta` nothing
/// runs.
template <class Op>
void run(const Op& op, Stream stream) {
  switch (stream.device.kind) {
    case DeviceKind::cpu:
      return launch_cpu(op);
    case DeviceKind::meta:
      return;
    case DeviceKind::cuda:
      if constexpr (SLUICE_HAS_CUDA)
        return launch_cuda(op, stream);
      else
        refuse_cuda();
  }
}

}  // namespace sluice
