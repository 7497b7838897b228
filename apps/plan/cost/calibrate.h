#pragma once

#include "apps/cli/machine.h"

namespace sluice {

/// Measures the floating-point operations per second that matrix products reach on the device: the
/// best of a few runs of one product of a convenient shape, in its own memory. MFU is stated
/// against this peak where no data sheet gives one.
double measure_matmul_rate(DeviceKind kind, const Precision& precision);

/// Measures the bytes per second that AdamW on the CPU reads and writes in f32, on all threads: the
/// best of a few runs.
double measure_update_rate();

}  // namespace sluice
