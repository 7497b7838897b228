#pragma once

#include "apps/train/machine.h"

namespace sluice {

/// The floating-point operations per second that the device's matrix products reach now: the best
/// of a few runs of one product of a comfortable shape, in memory of its own. It is the peak
/// against which MFU is stated where no data sheet gives one.
double measure_matmul_rate(DeviceKind kind, const Precision& precision);

}  // namespace sluice
