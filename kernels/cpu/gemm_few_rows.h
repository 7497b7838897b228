#pragma once

#include "kernels/gemm.h"

namespace sluice::cpu {

/// Whether out has so few rows that reading b is most of the product's time: a token that is
/// generated, or one of each of a few texts. Not f64, nor sums of nothing.
bool has_few_rows(const Gemm& op);

/// Such a product: b is read once, in the order in which it lies in memory, and all rows of a are
/// multiplied with what has been read. Sums are f32. The work is cut by shape and dtype alone and
/// partial sums are added in order, so the bits do not depend on the number of threads.
void gemm_few_rows(const Gemm& op);

}  // namespace sluice::cpu
