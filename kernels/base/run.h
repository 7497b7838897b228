#pragma once

#include "kernels/base/device.h"

namespace sluice {

/// Throws Error (usage): this program was built without CUDA.
[[noreturn]] void refuse_cuda();

/// Runs an op; this is the only device dispatch of the program. An op is an argument struct `Op`
/// with free functions `launch_cpu(const Op&)` and `launch_cuda(const Op&, Stream)`; `meta` runs
/// nothing. A CPU has done the work when the call returns; a GPU does it in stream order.
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
