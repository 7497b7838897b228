#pragma once

#include "kernels/base/error.h"
#include "kernels/base/stream.h"

namespace sluice {

/// The only device dispatch of the program. An op is an argument struct `Op` with a free function
/// `launch_cpu(const Op&)` beside it; on `meta` nothing runs.
template <class Op>
void run(const Op& op, Stream stream) {
  switch (stream.device.kind) {
    case DeviceKind::cpu:
      return launch_cpu(op);
    case DeviceKind::meta:
      return;
    case DeviceKind::cuda:
      fail("this program was built without CUDA; use --device cpu");
  }
}

}  // namespace sluice
