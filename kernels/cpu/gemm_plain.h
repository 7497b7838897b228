#pragma once

#include "kernels/gemm.h"

namespace sluice::cpu {

/// Computes the product in plain loops: for f64, builds without oneDNN, and as tests' reference.
void gemm_plain(const Gemm& op);

}  // namespace sluice::cpu
