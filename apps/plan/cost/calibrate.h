#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "apps/cli/machine.h"

namespace sluice {

/// Returns the operations per second of the fastest run of one product. The sizes are tried from
/// the smallest until a run takes 5 ms, so that a slow machine does not wait for a product that a
/// fast one needs: `operations` has the count of each size, `seconds_of(size)` runs it once. If the
/// smallest takes 50 ms, it runs once.
double largest_rate(const std::vector<double>& operations,
                    const std::function<double(std::size_t)>& seconds_of);

/// Measures the floating-point operations per second that matrix products reach on the device, in
/// memory of its own. MFU is stated against this peak where no data sheet gives one.
double measure_matmul_rate(DeviceKind kind, const Precision& precision);

/// Measures the bytes per second that AdamW on the CPU reads and writes in f32, on all threads: the
/// best of a few runs.
double measure_update_rate();

}  // namespace sluice
