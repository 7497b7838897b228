#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "apps/cli/machine.h"

namespace sluice {

/// Returns the operations per second of the fastest run of a matrix product. Tries sizes from the
/// smallest until a run takes 2 ms and four times as long as the size before: a slow machine need
/// not run the size that a fast one needs, and waiting for a busy processor is not taken for work.
/// No size is tried after a smallest one of 50 ms. `operations[size]` is the size's operation
/// count, some eight times that of the size before; `seconds_of(size)` runs it once.
double largest_rate(const std::vector<double>& operations,
                    const std::function<double(std::size_t)>& seconds_of);

/// Measures the FLOP/s that matrix products reach on the device, in separate memory. It is the peak
/// for MFU if no data sheet gives one.
double measure_matmul_rate(DeviceKind kind, const Precision& precision);

/// Measures the bytes per second that AdamW on the CPU reads and writes in f32, on all threads: the
/// best of a few runs.
double measure_update_rate();

}  // namespace sluice
