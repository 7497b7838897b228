#include <algorithm>
#include <cmath>

#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::norm_test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

enum class Kind { layernorm, unbiased_layernorm, rmsnorm };

/// A norm and everything around it in both directions.
struct Norm {
  std::int64_t rows, width;
  Kind kind;
  Array in, branch, weight, bias, sum, out, mean, rstd, grad_out, grad_sum, grad_in;
  Array grad_weight, grad_bias;

  Norm(std::int64_t row_count, std::int64_t columns, DType dtype, double offset = 0,
       Kind norm_kind = Kind::layernorm)
      : rows(row_count),
        width(columns),
        kind(norm_kind),
        in(dtype, random_values(rows * width, 1)),
        branch(dtype, random_values(rows * width, 2)),
        weight(dtype, random_values(width, 3)),
        bias(dtype, random_values(width, 4)),
        sum(dtype, rows * width),
        out(dtype, rows * width),
        mean(accumulator_of(dtype), rows),
        rstd(accumulator_of(dtype), rows),
        grad_out(dtype, random_values(rows * width, 5)),
        grad_sum(dtype, random_values(rows * width, 6)),
        grad_in(dtype, rows * width),
        grad_weight(accumulator_of(dtype), width),
        grad_bias(accumulator_of(dtype), width) {
    Values shifted = in.values();
    for (auto& value : shifted)
      value += offset;
    in.set(shifted);
  }

  View if_centred(Array& array) const { return kind != Kind::rmsnorm ? array.flat() : View{}; }
  View if_biased(Array& array) const { return kind == Kind::layernorm ? array.flat() : View{}; }
  void forward(bool residual) {
    const auto as = [&](Array& array) { return array.view({rows, width}); };
    launch_cpu(NormForward{.out = as(out),
                           .sum = residual ? as(sum) : View{},
                           .mean = if_centred(mean),
                           .rstd = rstd.flat(),
                           .in = as(in),
                           .branch = residual ? as(branch) : View{},
                           .weight = weight.flat(),
                           .bias = if_biased(bias),
                           .epsilon = 1e-5});
  }
  void backward(bool residual, bool accumulate) { backward(residual, accumulate, accumulate); }
  void backward(bool residual, bool accumulate_weight, bool accumulate_bias) {
    const auto as = [&](Array& array) { return array.view({rows, width}); };
    launch_cpu(NormBackward{.grad_in = as(grad_in),
                            .grad_weight = grad_weight.flat(),
                            .grad_bias = if_biased(grad_bias),
                            .grad_out = as(grad_out),
                            .grad_sum = residual ? as(grad_sum) : View{},
                            .normalized_in = residual ? as(sum) : as(in),
                            .mean = if_centred(mean),
                            .rstd = rstd.flat(),
                            .weight = weight.flat(),
                            .accumulate_weight = accumulate_weight,
                            .accumulate_bias = accumulate_bias});
  }
};

void check_norm(Norm& norm, bool residual, bool accumulate) {
  const DType dtype = norm.in.dtype();
  const auto width = static_cast<std::size_t>(norm.width);
  if (accumulate) {
    norm.grad_weight.set(random_values(norm.width, 7));
    norm.grad_bias.set(random_values(norm.width, 8));
  }
  Values grad_weight = accumulate ? norm.grad_weight.values() : Values(width);
  Values grad_bias = accumulate ? norm.grad_bias.values() : Values(width);
  norm.forward(residual);
  norm.backward(residual, accumulate);
  const Values in = norm.in.values(), branch = norm.branch.values();
  const Values weight = norm.weight.values(), bias = norm.bias.values();
  const Values grad_out = norm.grad_out.values(), grad_sum = norm.grad_sum.values();
  Values sum(in), out(in.size()), grad_in(in.size()), means, rstds;
  for (std::size_t i = 0; residual && i < in.size(); ++i)
    sum[i] += branch[i];
  const bool centred = norm.kind != Kind::rmsnorm, biased = norm.kind == Kind::layernorm;
  for (std::size_t row = 0; row < in.size(); row += width) {
    double mean = 0, variance = 0, dot = 0, total = 0;
    for (std::size_t j = row; j < row + width && centred; ++j)
      mean += sum[j] / static_cast<double>(width);
    for (std::size_t j = row; j < row + width; ++j)
      variance += (sum[j] - mean) * (sum[j] - mean) / static_cast<double>(width);
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    means.push_back(mean);
    rstds.push_back(rstd);
    for (std::size_t j = 0; j < width; ++j) {
      const double normalized = (sum[row + j] - mean) * rstd;
      out[row + j] = normalized * weight[j] + (biased ? bias[j] : 0);
      grad_weight[j] += grad_out[row + j] * normalized;
      grad_bias[j] += biased ? grad_out[row + j] : 0;
      dot += grad_out[row + j] * weight[j] * normalized / static_cast<double>(width);
      if (centred) total += grad_out[row + j] * weight[j] / static_cast<double>(width);
    }
    for (std::size_t j = 0; j < width; ++j)
      grad_in[row + j] =
          rstd * (grad_out[row + j] * weight[j] - total - (sum[row + j] - mean) * rstd * dot) +
          (residual ? grad_sum[row + j] : 0);
  }
  CAPTURE(name_of(dtype), norm.rows, norm.width, residual, accumulate, centred, biased);
  // The sum is rounded to the dtype before or after it is normalised: either is within the bound,
  // but statistics of 16-bit sums carry it too.
  const double tolerance = (residual ? 2 : 1) * tolerance_of(dtype);
  const double statistics = residual ? tolerance : tolerance_of(accumulator_of(dtype));
  CHECK(relative_l2(norm.out.values(), out) <= tolerance);
  if (residual) CHECK(relative_l2(norm.sum.values(), sum) <= tolerance);
  CHECK(relative_l2(norm.rstd.values(), rstds) <= statistics);
  CHECK(relative_l2(norm.grad_in.values(), grad_in) <= tolerance);
  CHECK(relative_l2(norm.grad_weight.values(), grad_weight) <= 2 * statistics);
  if (!centred) return;
  CHECK(relative_l2(norm.mean.values(), means) <= 10 * statistics);  // a mean is near zero
  if (!biased && !accumulate) return;  // then nothing is written there
  CHECK(relative_l2(norm.grad_bias.values(), grad_bias) <= 2 * statistics);
}

TEST_CASE("layernorm and rmsnorm agree with their definitions", "[norm]") {
  for (const Kind kind : {Kind::layernorm, Kind::unbiased_layernorm, Kind::rmsnorm})
    for (const DType dtype : dtypes)
      for (const auto& [rows, width] :
           {std::pair<std::int64_t, std::int64_t>{1, 2}, {3, 17}, {70, 64}, {5, 769}, {257, 33}})
        for (const bool residual : {false, true})
          for (const bool accumulate : {false, true}) {
            // A mean away from zero, which RMSNorm must keep.
            Norm norm(rows, width, dtype, kind == Kind::rmsnorm ? 0.5 : 0, kind);
            check_norm(norm, residual, accumulate);
          }
}

TEST_CASE("layernorm adds to the gradient of the weight, of the bias, of both or of none",
          "[norm]") {
  const Values before_weight = random_values(33, 7), before_bias = random_values(33, 8);
  Norm sums(5, 33, DType::f64);
  sums.forward(false);
  sums.backward(false, false);
  const Values weight = sums.grad_weight.values(), bias = sums.grad_bias.values();
  for (const bool to_weight : {false, true})
    for (const bool to_bias : {false, true}) {
      CAPTURE(to_weight, to_bias);
      Norm norm(5, 33, DType::f64);
      norm.grad_weight.set(before_weight);
      norm.grad_bias.set(before_bias);
      norm.forward(false);
      norm.backward(false, to_weight, to_bias);
      Values expected[] = {weight, bias};
      for (std::size_t j = 0; j < 33; ++j) {
        expected[0][j] += to_weight ? before_weight[j] : 0;
        expected[1][j] += to_bias ? before_bias[j] : 0;
      }
      CHECK(relative_l2(norm.grad_weight.values(), expected[0]) <= tolerance_of(DType::f64));
      CHECK(relative_l2(norm.grad_bias.values(), expected[1]) <= tolerance_of(DType::f64));
    }
}

TEST_CASE("layernorm survives a large mean and a constant row", "[norm]") {
  // E[x^2] - E[x]^2 in fp32 would have nothing left of a variance of 1/3 beside 1000^2.
  Norm norm(7, 300, DType::f32, 1000);
  norm.forward(false);
  const Values in = norm.in.values(), rstd = norm.rstd.values();
  for (std::size_t row = 0; row < 7; ++row) {
    double mean = 0, variance = 0;
    for (std::size_t j = 0; j < 300; ++j)
      mean += in[row * 300 + j] / 300;
    for (std::size_t j = 0; j < 300; ++j)
      variance += (in[row * 300 + j] - mean) * (in[row * 300 + j] - mean) / 300;
    CHECK(rstd[row] == Approx(1 / std::sqrt(variance + 1e-5)).epsilon(1e-3));
  }
  Norm constant(2, 8, DType::f32);
  constant.in.set(Values(16, 3));
  constant.forward(false);
  CHECK(constant.out.values()[3] == constant.bias.values()[3]);
  CHECK(constant.rstd.values()[1] == Approx(1 / std::sqrt(1e-5)));
}

TEST_CASE("dropout is a function of key, sample and element", "[elementwise]") {
  for (const DType dtype : dtypes) {
    const std::int64_t samples = 6, size = 4001;
    const DropoutMask mask{.key = 9, .probability = 0.25f, .first_sample = 7};
    Array in(dtype, Values(static_cast<std::size_t>(samples * size), 3)),
        out(dtype, samples * size);
    launch_cpu(
        Dropout{.out = out.view({samples, size}), .in = in.view({samples, size}), .mask = mask});
    const Values values = out.values();
    double kept = 0;
    for (const double value : values) {
      if (value == 0) continue;
      ++kept;
      REQUIRE(value == Approx(4).epsilon(std::max(tolerance_of(dtype), 1e-7)));
    }
    const auto count = static_cast<double>(values.size());
    CHECK(std::abs(kept / count - 0.75) < 4 * std::sqrt(0.25 * 0.75 / count));
    Array alone(dtype, Values(static_cast<std::size_t>(size), 3));  // the fifth sample, in place
    DropoutMask moved = mask;
    moved.first_sample += 4;
    launch_cpu(Dropout{.out = alone.view({1, size}), .in = alone.view({1, size}), .mask = moved});
    CHECK(alone.values() == Values(values.begin() + 4 * size, values.begin() + 5 * size));
    CHECK(alone.values() != Values(values.begin() + 3 * size, values.begin() + 4 * size));
  }
}

TEST_CASE("sums over columns, elements and blocks", "[reduce]") {
  for (const DType dtype : dtypes) {
    for (const auto& [rows, columns] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 33}, {700, 5}, {65, 1025}}) {
      Array in(dtype, random_values(rows * columns, 1)), out(accumulator_of(dtype), columns);
      const Values x = in.values();
      Values expected(static_cast<std::size_t>(columns));
      for (std::size_t i = 0; i < x.size(); ++i)
        expected[i % expected.size()] += x[i];
      launch_cpu(ColumnSum{.out = out.flat(), .in = in.view({rows, columns})});
      CHECK(relative_l2(out.values(), expected) <= tolerance_of(accumulator_of(dtype)));
      launch_cpu(ColumnSum{.out = out.flat(), .in = in.view({rows, columns}), .accumulate = true});
      for (auto& value : expected)
        value *= 2;
      CHECK(relative_l2(out.values(), expected) <= tolerance_of(accumulator_of(dtype)));
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const std::int64_t block = SquaredNorm{}.block;
    for (const std::int64_t size : {std::int64_t{1}, block - 1, block, block + 1, 3 * block + 17}) {
      Array in(dtype, random_values(size, 1)), sum(dtype, 1);
      Array partial(DType::f64, (size + block - 1) / block);
      Values expected(partial.values().size());
      double total = 0;
      const Values x = in.values();
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected[i / static_cast<std::size_t>(block)] += x[i] * x[i];
        total += x[i];
      }
      launch_cpu(SquaredNorm{.partial = partial.flat(), .in = in.flat()});
      const Values actual = partial.values();
      for (std::size_t i = 0; i < actual.size(); ++i)
        CHECK(actual[i] == Approx(expected[i]).epsilon(dtype == DType::f64 ? 1e-12 : 1e-6));
      if (dtype == DType::bf16) continue;
      launch_cpu(Sum{.out = sum.flat(), .in = in.flat(), .scale = 0.5});
      CHECK(sum.values()[0] == Approx(0.5 * total).epsilon(dtype == DType::f64 ? 1e-12 : 1e-6));
      launch_cpu(Sum{.out = sum.flat(), .in = in.flat(), .scale = 0.25, .accumulate = true});
      CHECK(sum.values()[0] == Approx(0.75 * total).epsilon(dtype == DType::f64 ? 1e-12 : 1e-6));
    }
  }
}

TEST_CASE("embedding looks up forwards and adds up backwards", "[embedding]") {
  const std::int64_t batch = 3, length = 5, width = 35, words = 11, positions = 9, first = 4;
  std::vector<std::int32_t> ids{3, 3, 0, 10, 3, 10, 1, 0, 3, 3, 7, 7, 7, 7, 7};
  for (const DType dtype : dtypes) {
    Array tokens(dtype, random_values(words * width, 1)),
        places(dtype, random_values(positions * width, 2));
    Array out(dtype, batch * length * width),
        grad_out(dtype, random_values(batch * length * width, 3));
    Array grad_tokens(accumulator_of(dtype), random_values(words * width, 4));
    Array grad_places(accumulator_of(dtype), random_values(positions * width, 5));
    Values sum, into_tokens = grad_tokens.values(), into_places = grad_places.values();
    const Values table = tokens.values(), place_table = places.values(), g = grad_out.values();
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (std::size_t c = 0; c < 35; ++c) {
        const std::size_t token = static_cast<std::size_t>(ids[i]) * 35 + c,
                          place = (4 + i % 5) * 35 + c;
        sum.push_back(table[token] + place_table[place]);
        into_tokens[token] += g[i * 35 + c];
        into_places[place] += g[i * 35 + c];
      }
    launch_cpu(EmbeddingForward{.out = out.view({batch, length, width}),
                                .tokens = view_of(ids, {batch, length}),
                                .token_table = tokens.view({words, width}),
                                .position_table = places.view({positions, width}),
                                .first_position = first});
    CHECK(out.bytes() == Array(dtype, sum).bytes());
    EmbeddingBackward back{.grad_token_table = grad_tokens.view({words, width}),
                           .grad_out = grad_out.view({batch, length, width}),
                           .tokens = view_of(ids, {batch, length}),
                           .first_position = first};
    launch_cpu(back);  // positions not wanted
    back.grad_token_table = {};
    back.grad_position_table = grad_places.view({positions, width});
    launch_cpu(back);
    CHECK(relative_l2(grad_tokens.values(), into_tokens) <= tolerance_of(accumulator_of(dtype)));
    CHECK(relative_l2(grad_places.values(), into_places) <= tolerance_of(accumulator_of(dtype)));
  }
}

TEST_CASE("no result of a kernel depends on the number of threads", "[norm]") {
  for (const DType dtype : dtypes) {
    CHECK(same_with_any_threads([&] {
      Norm norm(301, 130, dtype);
      norm.forward(true);
      norm.backward(true, false);
      Norm root(301, 130, dtype, 0.5, Kind::rmsnorm);
      root.forward(true);
      root.backward(true, false);
      Array columns(accumulator_of(dtype), 130), partial(DType::f64, 3), sum(DType::f32, 1);
      launch_cpu(ColumnSum{.out = columns.flat(), .in = norm.in.view({301, 130})});
      Array many(DType::f32, random_values(2 * SquaredNorm{}.block + 5, 1));
      launch_cpu(SquaredNorm{.partial = partial.flat(), .in = many.flat()});
      launch_cpu(Sum{.out = sum.flat(), .in = many.flat()});
      return std::array{root.out.bytes(),
                        root.grad_in.bytes(),
                        root.grad_weight.bytes(),
                        norm.out.bytes(),
                        norm.mean.bytes(),
                        norm.rstd.bytes(),
                        norm.grad_in.bytes(),
                        norm.sum.bytes(),
                        norm.grad_weight.bytes(),
                        norm.grad_bias.bytes(),
                        columns.bytes(),
                        partial.bytes(),
                        sum.bytes()};
    }));
  }
}

}  // namespace
}  // namespace sluice::test::norm_test
