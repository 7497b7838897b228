#pragma once

#include "kernels/attention.h"

namespace sluice::cuda {

/// True if the program has the kernel below and GPUs of this compute capability can run it.
bool has_attention_wgmma(int capability);

/// Attention without dropout whose heads fit tiles (fits_tiles()).
void attention_wgmma(const AttentionForward& op, Stream stream);

}  // namespace sluice::cuda
