#pragma once

#include "kernels/gemm.h"

namespace sluice::cpu {

// The ways in which the CPU computes a product, of which launch_cpu(Gemm) chooses one. The caller
// has checked the shapes.

/// Computes the product in plain loops: for f64, builds without oneDNN, and as tests' reference.
void gemm_plain(const Gemm& op);

/// Computes the product with oneDNN, over a tile grid fixed by the shape. Each tile is a
/// single-threaded primitive, so 1, 2 or 8 threads give equal bits. f16, and bf16 if the processor
/// has no bf16 arithmetic, are converted to f32 first.
void gemm_onednn(const Gemm& op);

/// True if out has so few rows that reading b takes most of the product's time: generation of one
/// token, or of one token for each of a few texts. False for f64 and if k or n is 0.
bool has_few_rows(const Gemm& op);

/// Computes such a product. It reads b once, in memory order, and multiplies all rows of a with
/// each piece. Sums are f32. Shape and dtype alone divide the work, and partial sums are added in
/// order, so the bits do not depend on the number of threads.
void gemm_few_rows(const Gemm& op);

}  // namespace sluice::cpu
