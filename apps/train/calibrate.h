#pragma once

#include "apps/train/machine.h"

namespace sluice {

/// The floating-point operations per second that the device's matrix products reach now: the best
/// of a few runs of one product of a comfortable shape, in memory of its own. It is the peak
/// against which MFU is stated where no data sheet gives one.
double measure_matmul_rate(DeviceKind kind, const Precision& precision);

/// The bytes per second that the CPU's AdamW reads and writes in f32, on all threads: the best of a
/// few runs.
double measure_update_rate();

}  // namespace sluice
