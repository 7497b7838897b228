#include <cmath>

#include "kernels/query_key_norm.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::query_key_norm_test {
namespace {

constexpr double epsilon = 1e-2;  // large enough to matter

struct Sizes {
  std::int64_t batch, length;
  AttentionHeads heads;
  std::int64_t width;

  std::int64_t columns() const { return heads.in_row() * width; }
  std::int64_t size() const { return batch * length * columns(); }
};

/// The result of the definition, or its gradients for grad_out.
struct Expected {
  Values out, grad_in, grad_query, grad_key;

  Expected(const Sizes& s, const Values& x, const Values& query, const Values& key,
           const Values& grad_out)
      : out(x), grad_in(grad_out), grad_query(query.size()), grad_key(key.size()) {
    const auto width = static_cast<std::size_t>(s.width);
    for (std::size_t head = 0; head < x.size() / width; ++head) {
      const auto of_row = static_cast<int>(head % static_cast<std::size_t>(s.heads.in_row()));
      if (of_row >= s.heads.query + s.heads.key_value) continue;
      const bool is_key = of_row >= s.heads.query;
      const Values& weight = is_key ? key : query;
      const std::size_t start = head * width;
      double squares = 0, dot = 0;
      for (std::size_t j = 0; j < width; ++j)
        squares += x[start + j] * x[start + j];
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
      for (std::size_t j = 0; j < width; ++j) {
        out[start + j] = x[start + j] * rstd * weight[j];
        (is_key ? grad_key : grad_query)[j] += grad_out[start + j] * x[start + j] * rstd;
        dot += grad_out[start + j] * weight[j] * x[start + j];
      }
      for (std::size_t j = 0; j < width; ++j)
        grad_in[start + j] = rstd * (grad_out[start + j] * weight[j] -
                                     x[start + j] * rstd * rstd * dot / static_cast<double>(width));
    }
  }
};

TEST_CASE("query_key_norm agrees with its definition", "[norm]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Sizes& s : {Sizes{1, 1, 1, 1}, Sizes{2, 5, {6, 2}, 12}, Sizes{1, 70, {2, 1}, 64},
                           Sizes{3, 43, {4, 4}, 7}}) {
      CAPTURE(name_of(dtype), s.heads.query, s.heads.key_value, s.width);
      const auto at = [&](Array& array) { return array.view({s.batch, s.length, s.columns()}); };
      const auto row = [&](Array& array) { return array.view({s.width}); };
      Array in(dtype, random_values(s.size(), 1, 2)), grad_out(dtype, random_values(s.size(), 2));
      Array query(dtype, random_values(s.width, 3)), key(dtype, random_values(s.width, 4));
      Array out(dtype, s.size()), grad_in(dtype, s.size());
      const DType sums = accumulator_of(dtype);
      Array grad_query(sums, Values(static_cast<std::size_t>(s.width), 5)), grad_key(sums, s.width);
      launch_cpu(QueryKeyNormForward{.out = at(out),
                                     .in = at(in),
                                     .query_weight = row(query),
                                     .key_weight = row(key),
                                     .heads = s.heads,
                                     .epsilon = epsilon});
      launch_cpu(QueryKeyNormBackward{.grad_in = at(grad_in),
                                      .grad_query_weight = row(grad_query),
                                      .grad_key_weight = row(grad_key),
                                      .grad_out = at(grad_out),
                                      .in = at(in),
                                      .query_weight = row(query),
                                      .key_weight = row(key),
                                      .heads = s.heads,
                                      .epsilon = epsilon,
                                      .accumulate_query = true});
      Expected expected(s, in.values(), query.values(), key.values(), grad_out.values());
      for (double& value : expected.grad_query)
        value += 5;
      CHECK(relative_l2(out.values(), expected.out) <= tolerance_of(dtype));
      CHECK(relative_l2(grad_in.values(), expected.grad_in) <= tolerance_of(dtype));
      CHECK(relative_l2(grad_query.values(), expected.grad_query) <= tolerance_of(dtype));
      CHECK(relative_l2(grad_key.values(), expected.grad_key) <= tolerance_of(dtype));
    }
}

TEST_CASE("query_key_norm does not depend on the number of threads", "[norm]") {
  const Sizes s{2, 150, {3, 1}, 40};
  CHECK(same_with_any_threads([&] {
    Array in(DType::bf16, random_values(s.size(), 1)),
        grad(DType::bf16, random_values(s.size(), 2));
    Array weight(DType::bf16, random_values(s.width, 3));
    Array out(DType::bf16, s.size()), query(DType::f32, s.width), key(DType::f32, s.width);
    launch_cpu(QueryKeyNormBackward{.grad_in = out.view({2, 150, s.columns()}),
                                    .grad_query_weight = query.view({s.width}),
                                    .grad_key_weight = key.view({s.width}),
                                    .grad_out = grad.view({2, 150, s.columns()}),
                                    .in = in.view({2, 150, s.columns()}),
                                    .query_weight = weight.view({s.width}),
                                    .key_weight = weight.view({s.width}),
                                    .heads = s.heads});
    return std::array{out.bytes(), query.bytes(), key.bytes()};
  }));
}

}  // namespace
}  // namespace sluice::test::query_key_norm_test
