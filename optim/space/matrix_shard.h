#pragma once

#include <cstdint>

namespace sluice {

/// The part of a matrix that this rank has: all of it, some rows, or some columns.
struct MatrixShard {
  enum class Cut : std::uint8_t { none, rows, columns };

  std::int64_t rows, columns;  ///< of the whole matrix
  Cut cut = Cut::none;
  std::int64_t count = 0;  ///< rows (columns) on this rank, if these are cut
  /// Index of the first of these rows; -1 if they are not contiguous.
  std::int64_t first = 0;

  /// The shape of the part.
  std::int64_t rows_here() const { return cut == Cut::rows ? count : rows; }
  std::int64_t columns_here() const { return cut == Cut::columns ? count : columns; }
};

}  // namespace sluice
