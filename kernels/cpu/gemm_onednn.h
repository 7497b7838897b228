#pragma once

#include "kernels/gemm.h"

namespace sluice::cpu {

/// Computes the product with oneDNN, over a tile grid fixed by the shape. Each tile is a
/// single-threaded primitive, so 1, 2 or 8 threads give equal bits. f16, and bf16 if the processor
/// has no bf16 arithmetic, are converted to f32 first.
void gemm_onednn(const Gemm& op);

}  // namespace sluice::cpu
