#include "optim/newton_schulz.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/muon.h"
#include "kernels/reduce.h"

namespace sluice {
namespace {

constexpr int iterations = 5;
constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
constexpr double epsilon = 1e-7;

constexpr std::int64_t panels = 4;
constexpr std::int64_t least_panel = 64;  ///< rows, and what they are a multiple of
constexpr std::int64_t norm_block = std::int64_t{1} << 16;
constexpr std::int64_t alignment = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

std::int64_t norm_blocks(std::int64_t elements) {
  return (elements + norm_block - 1) / norm_block;
}

/// Bytes of the sums of squares, as many on all ranks.
std::int64_t norm_bytes(const MatrixShard& shard) {
  return norm_blocks(shard.rows * shard.columns) * static_cast<std::int64_t>(sizeof(double));
}

/// Returns `rows` x `columns` of a matrix, from an element on.
View part(const View& matrix, std::int64_t row, std::int64_t column, std::int64_t rows,
          std::int64_t columns) {
  View view = matrix;
  view.address +=
      (row * matrix.stride(0) + column) * static_cast<std::int64_t>(size_of(matrix.dtype));
  view.shape = {rows, columns};
  return view;
}

}  // namespace

NewtonSchulz::NewtonSchulz(const MatrixShard& shard, DType dtype)
    : shard_(shard),
      dtype_(dtype),
      rows_(collects() ? shard.rows : shard.rows_here()),
      columns_(shard.columns_here()),
      wide_(sums_products() ? shard.cut == Cut::columns : rows_ <= columns_),
      side_(wide_ ? rows_ : columns_) {
  check(shard.rows_here() > 0 && shard.columns_here() > 0,
        "every rank has a part of a matrix that ranks divide");
  check(!collects() || shard.first >= 0, "a rank's rows of a wide matrix are contiguous");
}

// The memory holds the matrix, the matrix after an odd number of iterations, A, A A, and the sums
// of squares; then A in the dtype in which ranks sum it, if that is another.

std::int64_t NewtonSchulz::bytes() const {
  const auto width = static_cast<std::int64_t>(size_of(dtype_));
  return 2 * aligned(rows_ * columns_ * width) + 2 * aligned(side_ * side_ * width) +
         aligned(norm_bytes(shard_)) + (sums_wider() ? sum_bytes() : 0);
}

double NewtonSchulz::flops() const {
  const auto n = static_cast<double>(side_);
  const double other = static_cast<double>(rows_ * columns_) / n;
  constexpr double panel_share = 0.5 + 0.5 / panels;
  return iterations * 2 * n * n * (panel_share * (other + n) + other);
}

/// Bytes of A as ranks sum it.
std::int64_t NewtonSchulz::sum_bytes() const {
  return side_ * side_ * static_cast<std::int64_t>(size_of(accumulator_of(dtype_)));
}

NewtonSchulz::Sums NewtonSchulz::sums() const {
  if (shard_.cut == Cut::none) return {};
  const auto width = static_cast<std::int64_t>(size_of(dtype_));
  if (collects()) return {1, rows_ * columns_ * width, rows_ * columns_ * width};
  const std::int64_t product = sum_bytes(), norm = norm_bytes(shard_);
  return {1 + iterations, norm + iterations * product, std::max(norm, product)};
}

/// The memory of the matrix that this rank iterates with.
View NewtonSchulz::all(std::byte* start) const {
  return {start, dtype_, {rows_, columns_}};
}

View NewtonSchulz::shard_of(const View& all) const {
  return collects() ? part(all, shard_.first, 0, shard_.count, columns_) : all;
}

View NewtonSchulz::matrix(std::byte* start) const {
  return shard_of(all(start));
}

void NewtonSchulz::collect(const View& all, Stream stream, const SumOverRanks& sum) const {
  const std::int64_t end = shard_.first + shard_.count;
  for (const auto& [first, count] : {std::pair(std::int64_t{0}, shard_.first), {end, rows_ - end}})
    if (count > 0) sluice::run(Fill{.out = part(all, first, 0, count, columns_)}, stream);
  sum(all, true, stream);
}

/// Every rank has the blocks of squares of its own shard. All add up to those of the whole, of
/// which there are as many places on each rank.
void NewtonSchulz::normalize(const View& all, const View& squares, Stream stream,
                             const SumOverRanks& sum) const {
  const View flat(all.address, dtype_, {rows_ * columns_});
  const View here(squares.address, DType::f64, {norm_blocks(rows_ * columns_)});
  if (here.size() < squares.size()) sluice::run(Fill{.out = squares}, stream);
  sluice::run(SquaredNorm{.partial = here, .in = flat, .block = norm_block}, stream);
  if (sums_products()) sum(squares, false, stream);
  sluice::run(DivideByNorm{.matrix = flat, .partial = squares, .epsilon = epsilon}, stream);
}

/// Computes out = left left^T, or left^T left `by_columns`, on and below the diagonal.
void NewtonSchulz::add_panels(const View& out, const View& left, bool by_columns, Stream stream,
                              bool tf32) const {
  const std::int64_t n = side_;
  const std::int64_t share = (n + panels - 1) / panels;
  const std::int64_t rows = (share + least_panel - 1) / least_panel * least_panel;
  const auto lines = [&](std::int64_t first, std::int64_t end) {
    return by_columns ? part(left, 0, first, left.dim(0), end - first)
                      : part(left, first, 0, end - first, left.dim(1));
  };
  for (std::int64_t first = 0; first < n; first += rows) {
    const std::int64_t end = std::min(first + rows, n);
    sluice::run(Gemm{.out = part(out, first, 0, end - first, end),
                     .a = lines(first, end),
                     .b = lines(0, end),
                     .transpose_a = by_columns,
                     .transpose_b = !by_columns,
                     .tf32 = tf32},
                stream);
  }
}

View NewtonSchulz::run(std::byte* start, Stream stream, bool tf32, const SumOverRanks& sum) const {
  const auto width = static_cast<std::int64_t>(size_of(dtype_));
  const std::int64_t matrix_bytes = aligned(rows_ * columns_ * width);
  const std::int64_t square_bytes = aligned(side_ * side_ * width);
  View x = all(start), next = all(start + matrix_bytes);
  std::byte* const behind = start + 2 * matrix_bytes;
  const View square(behind, dtype_, {side_, side_});
  const View polynomial(behind + square_bytes, dtype_, {side_, side_});
  std::byte* const norms = behind + 2 * square_bytes;
  const View squares(norms, DType::f64,
                     {norm_bytes(shard_) / static_cast<std::int64_t>(sizeof(double))});
  const View summed = sums_wider() ? View(norms + aligned(norm_bytes(shard_)),
                                          accumulator_of(dtype_), {side_, side_})
                                   : square;
  if (collects()) collect(x, stream, sum);
  normalize(x, squares, stream, sum);
  for (int i = 0; i < iterations; ++i) {
    add_panels(summed, x, !wide_, stream, tf32);
    sluice::run(SymmetricSum{.out = summed}, stream);
    if (sums_products()) sum(summed, false, stream);
    if (sums_wider()) sluice::run(Cast{.out = square, .in = summed}, stream);
    add_panels(polynomial, square, false, stream, tf32);
    sluice::run(
        SymmetricSum{
            .out = polynomial, .added = square, .factor = c, .added_factor = b, .identity = a},
        stream);
    sluice::run(
        Gemm{.out = next, .a = wide_ ? polynomial : x, .b = wide_ ? x : polynomial, .tf32 = tf32},
        stream);
    std::swap(x, next);
  }
  return shard_of(x);
}

}  // namespace sluice
