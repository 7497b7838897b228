#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Replaces a matrix by about the nearest one with orthonormal rows (or columns, if it has fewer of
/// these): U V^T of its singular value decomposition U S V^T, but for singular values of 0.7 to 1.2
/// instead of 1. The method is the Newton-Schulz iteration of Muon (Jordan and others, 2024,
/// https://kellerjordan.github.io/posts/muon):
///   X = M / max(|M|, 1e-7), with the Frobenius norm; then five times
///   X = a X + (b A + c A A) X, with A = X X^T and (a, b, c) = (3.4445, -4.7750, 2.0315)
/// A matrix with fewer columns than rows has A = X^T X on the right side of X. Of the symmetric
/// A and A A only panels up to the diagonal are computed, 5/8 of the work or less.
///
/// It works in memory that the caller gives. The matrix is f32, bf16 or, on the CPU, f64, and all
/// products are of that dtype, with sums in f32 (f64).
class NewtonSchulz {
 public:
  NewtonSchulz(std::int64_t rows, std::int64_t columns, DType dtype);

  /// Bytes of memory that a run needs. Those of a smaller matrix are no more.
  std::int64_t bytes() const;
  /// The caller writes the matrix there before run(), contiguous, in memory that begins at `start`
  /// and is aligned to 256 bytes.
  View matrix(std::byte* start) const;
  /// Returns where the result is.
  View run(std::byte* start, Stream stream, bool tf32) const;

  /// Floating-point operations of a run's matrix products.
  double flops() const;

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

 private:
  std::int64_t side() const { return rows_ < columns_ ? rows_ : columns_; }
  View other(std::byte* start) const;
  void add_panels(const View& out, const View& left, bool by_columns, Stream stream,
                  bool tf32) const;

  std::int64_t rows_, columns_;
  DType dtype_;
};

}  // namespace sluice
