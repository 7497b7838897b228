#include "optim/newton_schulz.h"

#include <algorithm>
#include <utility>

#include "kernels/base/run.h"
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

NewtonSchulz::NewtonSchulz(std::int64_t rows, std::int64_t columns, DType dtype)
    : rows_(rows), columns_(columns), dtype_(dtype) {}

// The memory holds the matrix, the matrix after an odd number of iterations, A, A A, and the sums
// of squares.

std::int64_t NewtonSchulz::bytes() const {
  const auto width = static_cast<std::int64_t>(size_of(dtype_));
  return 2 * aligned(rows_ * columns_ * width) + 2 * aligned(side() * side() * width) +
         aligned(norm_blocks(rows_ * columns_) * static_cast<std::int64_t>(sizeof(double)));
}

double NewtonSchulz::flops() const {
  const auto n = static_cast<double>(side());
  const double longer = static_cast<double>(rows_ * columns_) / n;
  constexpr double panel_share = 0.5 + 0.5 / panels;
  return iterations * 2 * n * n * (panel_share * (longer + n) + longer);
}

View NewtonSchulz::matrix(std::byte* start) const {
  return {start, dtype_, {rows_, columns_}};
}

View NewtonSchulz::other(std::byte* start) const {
  return matrix(start + aligned(rows_ * columns_ * static_cast<std::int64_t>(size_of(dtype_))));
}

/// Computes out = left left^T, or left^T left `by_columns`, on and below the diagonal.
void NewtonSchulz::add_panels(const View& out, const View& left, bool by_columns, Stream stream,
                              bool tf32) const {
  const std::int64_t n = side();
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

View NewtonSchulz::run(std::byte* start, Stream stream, bool tf32) const {
  const auto width = static_cast<std::int64_t>(size_of(dtype_));
  const bool wide = rows_ <= columns_;
  const std::int64_t n = side();
  View x = matrix(start), next = other(start);
  std::byte* const behind = start + 2 * aligned(rows_ * columns_ * width);
  const View square(behind, dtype_, {n, n});
  const View polynomial(behind + aligned(n * n * width), dtype_, {n, n});
  const View squares(behind + 2 * aligned(n * n * width), DType::f64,
                     {norm_blocks(rows_ * columns_)});
  const View flat(x.address, dtype_, {rows_ * columns_});
  sluice::run(SquaredNorm{.partial = squares, .in = flat, .block = norm_block}, stream);
  sluice::run(DivideByNorm{.matrix = flat, .partial = squares, .epsilon = epsilon}, stream);
  for (int i = 0; i < iterations; ++i) {
    add_panels(square, x, !wide, stream, tf32);
    sluice::run(SymmetricSum{.out = square}, stream);
    add_panels(polynomial, square, false, stream, tf32);
    sluice::run(
        SymmetricSum{
            .out = polynomial, .added = square, .factor = c, .added_factor = b, .identity = a},
        stream);
    sluice::run(
        Gemm{.out = next, .a = wide ? polynomial : x, .b = wide ? x : polynomial, .tf32 = tf32},
        stream);
    std::swap(x, next);
  }
  return x;
}

}  // namespace sluice
