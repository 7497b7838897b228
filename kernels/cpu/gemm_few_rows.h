#pragma once

#include "kernels/gemm.h"

namespace sluice::cpu {

/// True if out has so few rows that reading b takes most of the product's time: generation of one
/// token, or of one token for each of a few texts. False for f64 and if k or n is 0.
bool has_few_rows(const Gemm& op);

/// Computes such a product. It reads b once, in memory order, and multiplies all rows of a with
/// each piece. Sums are f32. Shape and dtype alone divide the work, and partial sums are added in
/// order, so the bits do not depend on the number of threads.
void gemm_few_rows(const Gemm& op);

}  // namespace sluice::cpu
