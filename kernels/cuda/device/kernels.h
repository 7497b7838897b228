#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice::cuda {

// Kernels that only a real GPU needs.

/// out[i, j] += bias[j], for products whose bias cuBLASLt cannot add. The sum is rounded to out's
/// dtype both before and after this addition.
void add_bias(const View& out, const View& bias, Stream stream);

/// Throws Error if this program has no code for the current device.
void require_image();

}  // namespace sluice::cuda
