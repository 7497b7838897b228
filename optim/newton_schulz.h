#pragma once

#include <cstdint>
#include <functional>

#include "kernels/base/device.h"
#include "kernels/base/view.h"
#include "optim/space/matrix_shard.h"

namespace sluice {

/// Sums an array over the ranks that divide a matrix, in place. `one_has`: no element is nonzero on
/// more than one of them, so the order does not matter. All ranks call it in the same order.
using SumOverRanks = std::function<void(const View& data, bool one_has, Stream stream)>;

/// Replaces a matrix by about the nearest one with orthonormal rows (or columns, if it has fewer of
/// these): U V^T of its singular value decomposition U S V^T, but for singular values of 0.7 to 1.2
/// instead of 1. The method is the Newton-Schulz iteration of Muon (Jordan and others, 2024,
/// https://kellerjordan.github.io/posts/muon):
///   X = M / max(|M|, 1e-7), with the Frobenius norm; then five times
///   X = a X + (b A + c A A) X, with A = X X^T and (a, b, c) = (3.4445, -4.7750, 2.0315)
/// A matrix with fewer columns than rows has A = X^T X on the right side of X. Of the symmetric
/// A and A A only panels up to the diagonal are computed, 5/8 of the work or less.
///
/// Ranks that divide a matrix have a shard X_r each, and all get the step of the whole matrix:
///   rows cut      A = sum over ranks of X_r^T X_r, on the right side of X_r
///   columns cut   A = sum over ranks of X_r X_r^T, on the left side of X_r
/// The squares of |M| are summed too. All sums over ranks are of f32 (f64), rounded once as those
/// of one process are. If the whole has fewer rows than columns and the rows are cut, A would be
/// larger than the matrix: ranks collect the matrix instead, by a sum of rows and zeros, and each
/// of them iterates with all of it.
///
/// It works in memory that the caller gives. The matrix is f32, bf16 or, on the CPU, f64, and all
/// products are of that dtype, with sums in f32 (f64).
class NewtonSchulz {
 public:
  NewtonSchulz(const MatrixShard& shard, DType dtype);

  /// Bytes of memory that a run needs.
  std::int64_t bytes() const;
  /// The caller writes the shard there before run(), contiguous, in memory that begins at `start`
  /// and is aligned to 256 bytes.
  View matrix(std::byte* start) const;
  /// Returns where the shard of the result is. `sum`: not used if the shard is the whole matrix.
  View run(std::byte* start, Stream stream, bool tf32, const SumOverRanks& sum = {}) const;

  /// Floating-point operations of a run's matrix products.
  double flops() const;
  /// What a run sums over ranks.
  struct Sums {
    std::int64_t operations = 0, bytes = 0;
    std::int64_t largest = 0;  ///< bytes
  };
  Sums sums() const;

  const MatrixShard& shard() const { return shard_; }

 private:
  using Cut = MatrixShard::Cut;
  bool collects() const { return shard_.cut == Cut::rows && shard_.rows < shard_.columns; }
  bool sums_products() const { return shard_.cut != Cut::none && !collects(); }
  /// Ranks sum A in another dtype than they multiply it in.
  bool sums_wider() const { return sums_products() && dtype_ != accumulator_of(dtype_); }
  std::int64_t sum_bytes() const;
  View all(std::byte* start) const;
  View shard_of(const View& all) const;
  void collect(const View& all, Stream stream, const SumOverRanks& sum) const;
  void normalize(const View& all, const View& squares, Stream stream,
                 const SumOverRanks& sum) const;
  void add_panels(const View& out, const View& left, bool by_columns, Stream stream,
                  bool tf32) const;

  MatrixShard shard_;
  DType dtype_;
  std::int64_t rows_, columns_;  ///< of the matrix that this rank iterates with
  bool wide_;                    ///< A is on the left side of X
  std::int64_t side_;            ///< rows of A
};

}  // namespace sluice
