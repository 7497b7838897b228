#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::cross_entropy_test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

struct Loss {
  std::int64_t rows, vocabulary;
  DType narrow;  // of the gradient, which takes the logits' place
  Array logits, losses;
  std::vector<std::int32_t> targets;

  Loss(std::int64_t row_count, std::int64_t words, DType dtype, double scale)
      : rows(row_count),
        vocabulary(words),
        narrow(dtype),
        logits(accumulator_of(dtype), random_values(rows * words, 1, scale)),
        losses(accumulator_of(dtype), rows) {
    for (std::int64_t i = 0; i < rows; ++i)
      targets.push_back(static_cast<std::int32_t>((i * 7919 + words - 1) % words));
  }
  void run(double gradient_scale, bool write_gradient) {
    launch_cpu(CrossEntropy{.losses = losses.flat(),
                            .logits = logits.view({rows, vocabulary}),
                            .gradient = write_gradient ? gradient() : View{},
                            .targets = view_of(targets, {rows}),
                            .gradient_scale = gradient_scale});
  }
  View gradient() {
    View view(logits.flat().address, narrow, {rows, vocabulary});
    view.strides[0] =
        vocabulary * static_cast<std::int64_t>(size_of(logits.flat().dtype) / size_of(narrow));
    return view;
  }
  Values gradient_values() {
    Values all;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto offset = row * gradient().stride(0) * static_cast<std::int64_t>(size_of(narrow));
      Array wide(DType::f64, vocabulary);
      launch_cpu(
          Cast{.out = wide.flat(), .in = View(gradient().address + offset, narrow, {vocabulary})});
      const Values values = wide.values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

TEST_CASE("cross entropy agrees with its definition", "[loss]") {
  const struct {
    std::int64_t rows, vocabulary;
    double scale;
  } cases[] = {{3, 1, 2}, {5, 2, 3}, {70, 17, 2}, {4, 1001, 1}, {3, 50257, 4}, {6, 300, 1e4}};
  for (const DType dtype : dtypes) {
    for (const auto& [rows, vocabulary, scale] : cases) {
      CAPTURE(name_of(dtype), rows, vocabulary, scale);
      Loss loss(rows, vocabulary, dtype, scale);
      const Values logits = loss.logits.values();
      loss.run(0.25, false);
      CHECK(loss.logits.values() == logits);
      const Values unrecorded = loss.losses.values();
      loss.run(0.25, true);
      CHECK(loss.losses.values() == unrecorded);
      const Values gradients = loss.gradient_values();
      Values losses, expected;
      const auto width = static_cast<std::size_t>(vocabulary);
      for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
        const double* x = logits.data() + row * width;
        const double highest = *std::max_element(x, x + width);
        double sum = 0, balance = 0;
        for (std::size_t j = 0; j < width; ++j)
          sum += std::exp(x[j] - highest);
        const auto target = static_cast<std::size_t>(loss.targets[row]);
        losses.push_back(highest - x[target] + std::log(sum));
        for (std::size_t j = 0; j < width; ++j) {
          expected.push_back(0.25 * (std::exp(x[j] - highest) / sum - (j == target ? 1 : 0)));
          balance += gradients[row * width + j];
        }
        CHECK(std::abs(balance) <= 0.25 * std::max(tolerance_of(dtype), 1e-12) * 2);
      }
      CHECK(relative_l2(unrecorded, losses) <= tolerance_of(accumulator_of(dtype)));
      CHECK(relative_l2(gradients, expected) <= tolerance_of(dtype));
    }
  }
}

TEST_CASE("the columns between the rows of a gradient are zero, as many as were asked for",
          "[loss]") {
  const std::int64_t rows = 3, words = 5, padding = 2, stride = 9;
  for (const DType dtype : dtypes) {
    CAPTURE(name_of(dtype));
    const DType wide = accumulator_of(dtype);
    Array logits(wide, random_values(rows * words, 1)), losses(wide, rows),
        partials(wide, 3 * rows);
    std::vector<std::int32_t> targets{0, 4, 2};
    launch_cpu(CrossEntropyPartials{.partials = partials.view({rows, 3}),
                                    .logits = logits.view({rows, words}),
                                    .targets = view_of(targets, {rows})});
    for (const bool of_partials : {false, true}) {
      CAPTURE(of_partials);
      Array gradient(dtype, rows * stride);  // NaN
      View view = gradient.view({rows, words});
      view.strides[0] = stride;
      if (of_partials)
        launch_cpu(CrossEntropyOfPartials{.losses = losses.flat(),
                                          .logits = logits.view({rows, words}),
                                          .gradient = view,
                                          .targets = view_of(targets, {rows}),
                                          .partials = partials.view({1, rows, 3}),
                                          .padding = padding});
      else
        launch_cpu(CrossEntropy{.losses = losses.flat(),
                                .logits = logits.view({rows, words}),
                                .gradient = view,
                                .targets = view_of(targets, {rows}),
                                .padding = padding});
      const Values values = gradient.values();
      std::string kinds;
      for (const double value : values)
        kinds += std::isnan(value) ? '?' : value == 0 ? '0' : 'x';
      // Beyond the padding begins what is nobody's.
      CHECK(kinds == "xxxxx00??xxxxx00??xxxxx00??");
    }
  }
}

TEST_CASE("the loss does not depend on the number of threads", "[loss]") {
  for (const DType dtype : dtypes) {
    CHECK(same_with_any_threads([&] {
      Loss loss(37, 1001, dtype, 3);
      loss.run(1, true);
      return std::array{loss.losses.bytes(), loss.logits.bytes()};
    }));
  }
}

}  // namespace
}  // namespace sluice::test::cross_entropy_test
