#pragma once

#include "kernels/gemm.h"

namespace sluice::cpu {

/// The product in plain loops: for f64, for builds without oneDNN, and as the reference in tests.
void gemm_plain(const Gemm& op);

}  // namespace sluice::cpu
