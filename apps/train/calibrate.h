#pragma once

#include "kernels/base/dtype.h"

namespace sluice {

/// The floating-point operations per second that this machine's matrix products reach now, with
/// operands of `dtype`: the best of a few runs of one product of a comfortable shape, in memory of
/// its own. It is the peak against which MFU is stated where no data sheet gives one.
double measure_matmul_rate(DType dtype);

}  // namespace sluice
