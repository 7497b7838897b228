#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice::cuda {

/// out[i, j] += bias[j], for the products whose bias cuBLASLt cannot add: the sum is rounded to
/// out's dtype once before and once after it.
void add_bias(const View& out, const View& bias, Stream stream);

}  // namespace sluice::cuda
