#pragma once

#include <string>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice::cuda {

// Kernels that only a real GPU needs.

/// out[i, j] += bias[j], for products whose bias cuBLASLt cannot add. The sum is rounded to out's
/// dtype both before and after this addition.
void add_bias(const View& out, const View& bias, Stream stream);

/// Returns the code that the current device runs: "sm_90", or "PTX of sm_90" if the driver has
/// compiled it, which it keeps for later runs. Throws Error if this program has none for the
/// device.
std::string image();

}  // namespace sluice::cuda
