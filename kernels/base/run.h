#pragma once

#include "kernels/base/stream.h"

namespace sluice {

/// The only device dispatch of the program. An op is an argument struct `Op` with free functions
/// `launch_cpu(const Op&)` and `launch_cuda(const Op&, Stream)` beside it; on `meta` nothing runs.
/// The CPU has done the work when the call returns, a GPU does it in the order of the stream.
template <class Op>
void run(const Op& op, Stream stream) {
  switch (stream.device.kind) {
    case DeviceKind::cpu:
      return launch_cpu(op);
    case DeviceKind::meta:
      return;
    case DeviceKind::cuda:
      return launch_cuda(op, stream);
  }
}

}  // namespace sluice
