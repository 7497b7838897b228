#pragma once

#include "engine/device_context.h"
#include "kernels/base/dtype.h"

namespace sluice {

/// The floating-point operations per second that this machine's matrix products reach now, with
/// operands of `dtype`: the best of a few runs of one product of a comfortable shape. It is the
/// peak against which MFU is stated where no data sheet gives one.
double measure_matmul_rate(const DevicePtr& device, DType dtype);

}  // namespace sluice
