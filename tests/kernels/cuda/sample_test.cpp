#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/sample.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::sample_test {
namespace {

struct How {
  float temperature = 1;
  std::int64_t top_k = 0;
  float top_p = 1;
};

Values points_of(std::int64_t rows) {
  Values points = random_values(rows, 5);
  for (auto& point : points)
    point = (point + 1) / 2;
  if (rows > 2) points[1] = 0;
  return points;
}

/// Logits of which some stand out. With ties they are multiples of 1/2.
Values logits_of(std::int64_t rows, std::int64_t vocabulary, bool ties) {
  Values logits = random_values(rows * vocabulary, 9, 4);
  for (auto& logit : logits) {
    if (logit > 3.5) logit += 2;
    if (ties) logit = std::round(2 * logit) / 2 + 0.0;  // no negative zero
  }
  return logits;
}

std::vector<std::int32_t> sample_on_cpu(const Values& logits, const Values& points, How how) {
  Array in(DType::f32, logits), at(DType::f32, points);
  const auto rows = static_cast<std::int64_t>(points.size());
  std::vector<std::int32_t> tokens(points.size(), -1);
  launch_cpu(SampleToken{.tokens = view_of(tokens, {rows}),
                         .logits = in.view({rows, static_cast<std::int64_t>(logits.size()) / rows}),
                         .points = at.flat(),
                         .temperature = how.temperature,
                         .top_k = how.top_k,
                         .top_p = how.top_p});
  return tokens;
}

/// Returns which rows keep their token when the point and the limit of the probabilities move by
/// 1e-4: only those must be unaffected by rounding.
std::vector<bool> settled_rows(const Values& logits, const Values& points, How how) {
  const auto expected = sample_on_cpu(logits, points, how);
  std::vector<bool> settled(points.size(), true);
  for (const double point_factor : {1 - 1e-4, 1.0, 1 + 1e-4}) {
    for (const double limit_factor : {1 - 1e-4, 1.0, 1 + 1e-4}) {
      Values moved = points;
      for (auto& point : moved)
        point = std::min(point * point_factor, 1 - 1e-7);
      How other = how;
      // A limit of 1 is no limit: it must not become one.
      if (how.top_p < 1)
        other.top_p = static_cast<float>(static_cast<double>(how.top_p) * limit_factor);
      const auto tokens = sample_on_cpu(logits, moved, other);
      for (std::size_t row = 0; row < settled.size(); ++row)
        settled[row] = settled[row] && tokens[row] == expected[row];
    }
  }
  return settled;
}

void compare(const CudaDevices& devices, std::int64_t rows, std::int64_t vocabulary,
             const Values& logits, How how, Parity::Offsets offsets = {}) {
  CAPTURE(rows, vocabulary, how.temperature, how.top_k, how.top_p, offsets.read);
  Values points = points_of(rows);
  if (how.temperature > 0) {
    // A point near a boundary goes elsewhere, until all rows are settled.
    for (int attempt = 0; attempt < 20; ++attempt) {
      const auto settled = settled_rows(logits, points, how);
      for (std::size_t row = 0; row < points.size(); ++row)
        if (!settled[row]) points[row] = std::fmod(points[row] + 0.0137 + 0.041 * attempt, 0.9999);
      if (std::find(settled.begin(), settled.end(), false) == settled.end()) break;
    }
    const auto settled = settled_rows(logits, points, how);
    CHECK(std::count(settled.begin(), settled.end(), false) == 0);
  }
  Parity parity(devices, offsets);
  const auto in = parity.input("logits", DType::f32, {rows, vocabulary}, logits);
  const auto at_points = parity.input("points", DType::f32, {rows}, points);
  const auto tokens = parity.output("tokens", DType::i32, {rows}, 0.0);
  parity.compare([=](const Parity::Views& at, Stream stream) {
    run(SampleToken{.tokens = at[tokens],
                    .logits = at[in],
                    .points = how.temperature > 0 ? at[at_points] : View{},
                    .temperature = how.temperature,
                    .top_k = how.top_k,
                    .top_p = how.top_p},
        stream);
  });
}

}  // namespace

TEST_CASE("cuda: sampling draws the CPU's tokens", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (std::int64_t place = 0; const float temperature : {1.0f, 0.7f, 2.0f})
    for (const std::int64_t vocabulary : {1, 3, 33, 100, 2050})
      if (in_form(2, {place++}))
        compare(devices, 33, vocabulary, logits_of(33, vocabulary, false), {temperature, 0, 1});
}

TEST_CASE("cuda: sampling of the most probable tokens", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // The logits have ties; some of the tied tokens are candidates and some are not.
  for (std::int64_t place = 0;
       const How how : {How{1, 1, 1}, How{1, 5, 1}, How{1.3f, 2, 1}, How{1, 100000, 1}})
    for (const std::int64_t vocabulary : {1, 3, 100, 2050})
      if (const auto p = place++; in_form(2, {p / 4, p % 4}))
        compare(devices, 3, vocabulary, logits_of(3, vocabulary, true), how);
}

TEST_CASE("cuda: sampling of the tokens that reach a probability", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (std::int64_t place = 0; const How how : {How{2, 0, 0.9f}, How{1, 0, 0.5f}, How{1, 0, 1e-6f}})
    for (const std::int64_t vocabulary : {1, 33, 100, 2050})
      if (in_form(3, {place++}))
        compare(devices, 3, vocabulary, logits_of(3, vocabulary, true), how);
}

TEST_CASE("cuda: sampling of the most probable tokens that reach a probability", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (std::int64_t place = 0;
       const How how : {How{0.8f, 40, 0.95f}, How{1.3f, 3, 0.2f}, How{0.1f, 50, 0.99f}})
    for (const std::int64_t vocabulary : {3, 100, 2050})
      if (in_form(2, {place++}))
        compare(devices, 3, vocabulary, logits_of(3, vocabulary, true), how);
}

TEST_CASE("cuda: sampling from GPT-2's vocabulary", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // Few tokens with most of the probability, so that there are points away from boundaries.
  Values logits = logits_of(3, 50257, true);
  for (std::size_t i = 0; i < logits.size(); i += 2003)
    logits[i] += 12;
  for (const How how : {How{1, 0, 1}, How{0.8f, 40, 0.95f}, How{1, 7, 1}, How{0, 0, 1}})
    compare(devices, 3, 50257, logits, how);
}

TEST_CASE("cuda: sampling at odd addresses", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const How how : {How{1, 0, 1}, How{0.8f, 40, 0.95f}, How{0, 0, 1}})
    for (const std::int64_t vocabulary : {5, 768})
      compare(devices, 5, vocabulary, logits_of(5, vocabulary, true), how, {1, 1});
}

TEST_CASE("cuda: at temperature 0 the first of the largest is taken", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const std::int64_t vocabulary : {1, 3, 33, 1024, 2050}) {
    // Quantised: the largest is there many times.
    compare(devices, 70, vocabulary, logits_of(70, vocabulary, true), {0, 0, 1});
    compare(devices, 70, vocabulary, logits_of(70, vocabulary, false), {0, 40, 0.5f});
    compare(devices, 5, vocabulary, Values(static_cast<std::size_t>(5 * vocabulary), -2.5),
            {0, 0, 1});
  }
}

TEST_CASE("cuda: sampling from equal logits", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (std::int64_t place = 0;
       const How how : {How{1, 0, 1}, How{1, 7, 1}, How{1, 0, 0.3f}, How{0.5f, 20, 0.75f}})
    for (const double logit : {-7.0, 0.0})
      if (in_form(2, {place++ / 2, logit < 0})) compare(devices, 5, 100, Values(500, logit), how);
}

TEST_CASE("cuda: equal logits are told apart up to the last token", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // The number of a token takes one bit more from each power of two on.
  for (const std::int64_t vocabulary : {2, 3, 63, 64, 65, 129})
    for (const std::int64_t top_k : {vocabulary / 2, vocabulary - 1})
      if (top_k > 0)
        compare(devices, 9, vocabulary, Values(static_cast<std::size_t>(9 * vocabulary), 1.5),
                {1, top_k, 1});
}

TEST_CASE("cuda: to sampling, both zeros are equal", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  Values zeros = random_values(500, 3);
  for (auto& zero : zeros)
    zero = std::copysign(0.0, zero);
  for (const How how : {How{0, 0, 1}, How{1, 1, 1}, How{1, 7, 1}, How{1, 0, 0.3f}, How{1, 0, 1}})
    compare(devices, 5, 100, zeros, how);
}

TEST_CASE("cuda: sampling never draws what is impossible", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  Values logits = logits_of(5, 100, true);
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (i % 3 == 0 || i % 100 == 99) logits[i] = -INFINITY;
  for (const How how : {How{1, 0, 1}, How{1, 7, 1}, How{1, 90, 1}, How{1, 0, 0.3f}})
    compare(devices, 5, 100, logits, how);
}

TEST_CASE("sampling draws no token of a row that is no distribution") {
  Values logits = logits_of(6, 100, true);
  logits[1 * 100 + 99] = NAN;
  logits[2 * 100] = -NAN;
  logits[3 * 100 + 41] = INFINITY;
  std::fill_n(logits.begin() + 4 * 100, 100, -INFINITY);
  for (std::size_t i = 0; i < 99; ++i)
    logits[5 * 100 + i] = -INFINITY;  // the last token alone is possible
  const CudaDevices devices;
  for (const How how : {How{1, 0, 1}, How{1, 7, 1}, How{1, 0, 0.3f}, How{0, 0, 1}}) {
    const auto tokens = sample_on_cpu(logits, Values(6, 0.5), how);
    CHECK(tokens[0] >= 0);
    CHECK(std::vector(tokens.begin() + 1, tokens.end()) ==
          std::vector<std::int32_t>{-1, -1, -1, -1, 99});
    if (devices) compare(devices, 6, 100, logits, how);
  }
}

}  // namespace sluice::test::sample_test
