#include <algorithm>
#include <cmath>

#include "kernels/cross_entropy.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::split_cross_entropy_test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr double gradient_scale = 0.25;

struct Result {
  Values losses, gradient;
};

struct Whole {
  std::int64_t rows, vocabulary;
  Values logits;
  std::vector<std::int32_t> targets;

  Whole(std::int64_t row_count, std::int64_t words, double scale)
      : rows(row_count), vocabulary(words), logits(random_values(rows * words, 1, scale)) {
    for (std::int64_t i = 0; i < rows; ++i)
      targets.push_back(static_cast<std::int32_t>((i * 7919 + words - 1) % words));
  }
  double& logit(std::int64_t row, std::int64_t column) {
    return logits[static_cast<std::size_t>(row * vocabulary + column)];
  }
  /// Computes with the op that has the whole vocabulary.
  Result result(DType dtype) {
    Array x(accumulator_of(dtype), logits), losses(accumulator_of(dtype), rows);
    Array gradient(dtype, rows * vocabulary);
    launch_cpu(CrossEntropy{.losses = losses.flat(),
                            .logits = x.view({rows, vocabulary}),
                            .gradient = gradient.view({rows, vocabulary}),
                            .targets = view_of(targets, {rows}),
                            .gradient_scale = gradient_scale});
    return {losses.values(), gradient.values()};
  }
};

/// A rank's share: columns of the logits, with rows as far apart as if there were more columns.
struct Part {
  std::int64_t rows, first, columns, stride;
  Array logits, gradient;  // the latter where it has memory of its own

  Part(const Whole& whole, DType dtype, std::int64_t first_column, std::int64_t count,
       std::int64_t padding)
      : rows(whole.rows),
        first(first_column),
        columns(count),
        stride(count + padding + 1),
        logits(accumulator_of(dtype), rows * stride),
        gradient(dtype, rows * stride) {
    Values values(static_cast<std::size_t>(rows * stride), NAN);
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(whole.logits.begin() + row * whole.vocabulary + first, columns,
                  values.begin() + row * stride);
    logits.set(values);
  }
  View view() { return strided(logits.flat().address, logits.dtype(), stride); }
  View own() { return strided(gradient.flat().address, gradient.dtype(), stride); }
  View overlay() {
    const auto narrow = size_of(logits.dtype()) / size_of(gradient.dtype());
    return strided(logits.flat().address, gradient.dtype(),
                   stride * static_cast<std::int64_t>(narrow));
  }

 private:
  View strided(std::byte* address, DType dtype, std::int64_t apart) const {
    View result(address, dtype, {rows, columns});
    result.strides[0] = apart;
    return result;
  }
};

/// The same by ranks that have `counts` columns each. Fails where they disagree on a loss, where
/// padding is not zero or something else is written, and where a gradient over the logits has other
/// bits than one elsewhere.
Result by_parts(Whole& whole, DType dtype, const std::vector<std::int64_t>& counts,
                std::int64_t padding = 0) {
  const DType wide = accumulator_of(dtype);
  const auto ranks = static_cast<std::int64_t>(counts.size());
  const View targets = view_of(whole.targets, {whole.rows});
  Array partials(wide, ranks * whole.rows * 3);
  std::vector<Part> parts;
  std::int64_t first = 0;
  for (const std::int64_t count : counts) {
    Part& part = parts.emplace_back(whole, dtype, first, count, padding);
    const auto rank = static_cast<std::int64_t>(parts.size()) - 1;
    const auto offset = static_cast<std::size_t>(rank * whole.rows * 3) * size_of(wide);
    launch_cpu(CrossEntropyPartials{
        .partials = View(partials.flat().address + offset, wide, {whole.rows, 3}),
        .logits = part.view(),
        .targets = targets,
        .first = first});
    first += count;
  }
  REQUIRE(first == whole.vocabulary);
  Result result;
  result.gradient.resize(whole.logits.size());
  for (Part& part : parts) {
    Array losses(wide, whole.rows), again(wide, whole.rows), unrecorded(wide, whole.rows);
    CrossEntropyOfPartials op{.losses = losses.flat(),
                              .logits = part.view(),
                              .gradient = part.own(),
                              .targets = targets,
                              .partials = partials.view({ranks, whole.rows, 3}),
                              .first = part.first,
                              .gradient_scale = gradient_scale,
                              .padding = padding};
    launch_cpu(op);
    op.losses = unrecorded.flat();
    op.gradient = {};
    launch_cpu(op);
    op.losses = again.flat();
    op.gradient = part.overlay();
    launch_cpu(op);
    CHECK(unrecorded.bytes() == losses.bytes());
    CHECK(again.bytes() == losses.bytes());
    if (result.losses.empty()) result.losses = losses.values();
    CHECK(losses.bytes() == Array(wide, result.losses).bytes());

    const Values gradient = part.gradient.values();
    const std::size_t size = size_of(dtype);
    const auto row_bytes = static_cast<std::size_t>(part.columns + padding) * size;
    for (std::int64_t row = 0; row < whole.rows; ++row) {
      const std::byte* apart =
          part.own().address + static_cast<std::size_t>(row * part.stride) * size;
      const std::byte* over =
          part.overlay().address + static_cast<std::size_t>(row * part.overlay().stride(0)) * size;
      CHECK(std::equal(apart, apart + row_bytes, over));
      const auto from = gradient.begin() + row * part.stride;
      std::copy_n(from, part.columns,
                  result.gradient.begin() + row * whole.vocabulary + part.first);
      CHECK(std::all_of(from + part.columns, from + part.columns + padding,
                        [](double value) { return value == 0; }));
      CHECK(std::isnan(from[part.columns + padding]));
    }
  }
  return result;
}

TEST_CASE("cross entropy of a divided vocabulary is that of the whole", "[loss]") {
  const struct {
    std::int64_t rows, vocabulary;
    double scale;
    std::vector<std::int64_t> counts;
  } cases[] = {{5, 50, 3, {25, 25}},         {5, 50, 3, {17, 17, 16}}, {7, 257, 2, {129, 128}},
               {9, 257, 2, {86, 86, 85}},    {3, 257, 2, {257}},       {3, 1, 2, {1, 0}},
               {3, 1, 2, {0, 1, 0}},         {6, 50, 1e4, {25, 25}},   {9, 257, 1e4, {100, 1, 156}},
               {300, 50, 4, {17, 16, 1, 16}}};
  for (const DType dtype : dtypes) {
    for (const auto& [rows, vocabulary, scale, counts] : cases) {
      for (const std::int64_t padding : {0, 3}) {
        CAPTURE(name_of(dtype), rows, vocabulary, scale, counts, padding);
        Whole whole(rows, vocabulary, scale);
        const Result expected = whole.result(dtype);
        const Result actual = by_parts(whole, dtype, counts, padding);
        CHECK(relative_l2(actual.losses, expected.losses) <= tolerance_of(accumulator_of(dtype)));
        CHECK(relative_l2(actual.gradient, expected.gradient) <= tolerance_of(dtype));
      }
    }
  }
}

TEST_CASE("rows without a target have no loss and no gradient, and change no other row", "[loss]") {
  for (const DType dtype : dtypes) {
    CAPTURE(name_of(dtype));
    Whole whole(7, 50, 3);
    // Nothing of such a row is looked at.
    whole.logit(4, 13) = static_cast<double>(NAN);
    const Result all = whole.result(dtype);
    const auto without = [](Values values, std::size_t of_row) {
      for (const std::size_t row : {0u, 4u, 6u})
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(row * of_row), of_row, 0.0);
      return values;
    };
    const Result parts = by_parts(whole, dtype, {17, 33}, 3);
    for (const std::size_t row : {0u, 4u, 6u})
      whole.targets[row] = row == 4 ? -100 : no_target;
    const Result some = whole.result(dtype), of_parts = by_parts(whole, dtype, {17, 33}, 3);
    CHECK(some.losses == without(all.losses, 1));
    CHECK(some.gradient == without(all.gradient, 50));
    CHECK(of_parts.losses == without(parts.losses, 1));
    CHECK(of_parts.gradient == without(parts.gradient, 50));
  }
}

TEST_CASE("a part of the vocabulary may be far below the other, or impossible", "[loss]") {
  for (const DType dtype : dtypes) {
    // The parts have 20 and 30 tokens; the first or the second one has the lower logits.
    for (const bool first_lower : {true, false}) {
      for (const double below : {100.0, 2e4, static_cast<double>(INFINITY)}) {
        CAPTURE(name_of(dtype), first_lower, below);
        Whole whole(4, 50, 3);
        for (std::int64_t row = 0; row < 4; ++row)
          for (std::int64_t column = 0; column < 50; ++column)
            if ((column < 20) == first_lower) whole.logit(row, column) -= below;
        // One target in either part, as long as it is possible.
        const bool possible = std::isfinite(below);
        whole.targets = {first_lower || possible ? 30 : 10, first_lower && !possible ? 49 : 0,
                         first_lower ? 20 : 19, first_lower || possible ? 49 : 0};
        const Result expected = whole.result(dtype);
        const Result actual = by_parts(whole, dtype, {20, 30});
        CHECK(std::isfinite(expected.losses[0]));
        CHECK(relative_l2(actual.losses, expected.losses) <= tolerance_of(accumulator_of(dtype)));
        CHECK(relative_l2(actual.gradient, expected.gradient) <= tolerance_of(dtype));
      }
    }
  }
}

TEST_CASE("a NaN or an infinity in one part is in the loss of all", "[loss]") {
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    for (const double others : {0.0, -static_cast<double>(INFINITY)}) {
      CAPTURE(bad, others);
      Whole whole(3, 50, 3);
      for (std::int64_t column = 20; column < 50; ++column)
        whole.logit(1, column) += others;
      whole.logit(1, 40) = bad;
      whole.targets = {3, 3, 3};
      const Result result = by_parts(whole, DType::f32, {20, 30});
      CHECK(std::isfinite(result.losses[0]));
      CHECK(std::isnan(result.losses[1]));
      CHECK(std::isfinite(result.losses[2]));
    }
  }
}

TEST_CASE("the loss of a divided vocabulary does not depend on the number of threads", "[loss]") {
  for (const DType dtype : dtypes) {
    CHECK(same_with_any_threads([&] {
      Whole whole(37, 1001, 3);
      const Result result = by_parts(whole, dtype, {500, 501}, 3);
      return std::array{result.losses, result.gradient};
    }));
  }
}

}  // namespace
}  // namespace sluice::test::split_cross_entropy_test
