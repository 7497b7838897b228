#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice::cuda {

/// out[i, j] += bias[j], for products whose bias cuBLASLt cannot add. The sum is rounded to out's
/// dtype both before and after this addition.
void add_bias(const View& out, const View& bias, Stream stream);

}  // namespace sluice::cuda
