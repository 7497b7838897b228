#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Division of Adafactor's passes over a matrix into blocks: a function of the shape alone, so that
/// neither threads nor the device change the order of a sum. A block is `tile` columns of some
/// rows. Counts and offsets below are in f64 numbers of the scratch memory.
struct AdafactorBlocks {
  static constexpr std::int64_t tile = 128;         ///< columns
  static constexpr std::int64_t moments_sum = 256;  ///< row moments that are summed together
  static constexpr std::int64_t least_rows = 32;
  static constexpr std::int64_t max_splits = 256;

  std::int64_t rows, columns;

  constexpr std::int64_t tiles() const { return (columns + tile - 1) / tile; }
  constexpr std::int64_t rows_per_split() const {
    const std::int64_t rows_needed = (rows + max_splits - 1) / max_splits;
    return rows_needed > least_rows ? rows_needed : least_rows;
  }
  constexpr std::int64_t splits() const { return (rows + rows_per_split() - 1) / rows_per_split(); }
  constexpr std::int64_t blocks() const { return tiles() * splits(); }
  constexpr std::int64_t moments_sums() const { return (rows + moments_sum - 1) / moments_sum; }

  /// Sums of squared gradients: of a row within one tile [tiles, rows]; of a column within one
  /// split [splits, columns].
  constexpr std::int64_t row_squares() const { return 0; }
  constexpr std::int64_t column_squares() const { return row_squares() + tiles() * rows; }
  /// Each block's squared weights, and its squared updates before clipping [splits, tiles].
  constexpr std::int64_t weight_squares() const { return column_squares() + splits() * columns; }
  constexpr std::int64_t update_squares() const { return weight_squares() + blocks(); }
  /// Sums of groups of `moments_sum` row moments.
  constexpr std::int64_t moment_sums() const { return update_squares() + blocks(); }
  /// The factor by which the updates are multiplied.
  constexpr std::int64_t factor() const { return moment_sums() + moments_sums(); }
  constexpr std::int64_t size() const { return factor() + 1; }
};

/// One Adafactor update of a whole tensor (Shazeer & Stern, 2018, algorithms 4 and 5, without first
/// moment and with a given rate):
///   g = gradient_scale * grad
///   r_i = b2 r_i + (1-b2) (mean over j of g_ij^2 + epsilon1);  c_j likewise down the rows
///   u_ij = g_ij / sqrt(r_i c_j / mean(r))
///   w -= rate * weight_decay * w
///   w -= rate * max(epsilon2, rms(w)) * u / max(1, rms(u) / clip)
/// where rms(w) is taken before the update; max(epsilon2, rms(w)) is 1 unless `scale_by_weights`.
/// grad: [rows * columns], f32 (f64 if all is, or bf16 with bf16 `working`); row_moment: [rows];
/// column_moment: [columns]; both of the master's dtype. A vector is one row: without `row_moment`,
/// column_moment is its full second moment. `master` (f32 or f64), `working`, `remainder`,
/// `gradient_scale`: as in AdamW. scratch: f64, [AdafactorBlocks::size()].
struct Adafactor {
  View master{};
  View working{};
  View remainder{};
  View row_moment{};
  View column_moment;
  View grad;
  View scratch;
  View gradient_scale{};
  double rate = 0;
  double beta2 = 0;
  double epsilon1 = 1e-30;
  double epsilon2 = 1e-3;
  double clip = 1;
  double weight_decay = 0;
  bool scale_by_weights = true;

  AdafactorBlocks blocks() const {
    return {.rows = row_moment ? row_moment.size() : 1, .columns = column_moment.size()};
  }
};
void launch_cpu(const Adafactor& op);
void launch_cuda(const Adafactor& op, Stream stream);

}  // namespace sluice
