#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cross_entropy.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test {
namespace {

struct Sizes {
  std::int64_t rows, vocabulary;
};
constexpr Sizes all_sizes[] = {{5, 1},   {33, 3},  {1, 8},    {33, 33},  {5, 48},
                               {9, 100}, {5, 768}, {3, 1600}, {5, 2050}, {1, 50257}};
constexpr double gradient_scale = 1.0 / 48;

/// Targets over all of the vocabulary, its ends among them.
Values targets_of(Sizes s) {
  Values targets = random_values(s.rows, 77);
  for (auto& target : targets)
    target = std::floor((target + 1) / 2 * static_cast<double>(s.vocabulary));
  targets.front() = static_cast<double>(s.vocabulary - 1);
  if (targets.size() > 1) targets.back() = 0;
  return targets;
}

/// Logits whose rows lie `stride` apart. What is between the rows must not matter: NaN.
Values logits_of(Sizes s, std::int64_t stride, double scale) {
  const Values random = random_values(s.rows * s.vocabulary, 3, scale);
  Values result(static_cast<std::size_t>(s.rows * stride), NAN);
  for (std::int64_t row = 0; row < s.rows; ++row)
    std::copy_n(random.begin() + row * s.vocabulary, s.vocabulary, result.begin() + row * stride);
  return result;
}

View strided(std::byte* address, DType dtype, Sizes s, std::int64_t stride) {
  View view(address, dtype, {s.rows, s.vocabulary});
  view.strides[0] = stride;
  return view;
}

}  // namespace

TEST_CASE("cuda: cross-entropy without a gradient", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const auto& s : all_sizes) {
    for (const std::int64_t gap : {0, 3}) {
      for (const auto offsets : all_offsets) {
        if (s.vocabulary > 10000 && offsets.read != offsets.written) continue;
        const std::int64_t stride = s.vocabulary + gap;
        CAPTURE(s.rows, s.vocabulary, stride, offsets.read, offsets.written);
        Parity parity(devices, offsets);
        const auto logits =
            parity.input("logits", DType::f32, {s.rows, stride}, logits_of(s, stride, 10));
        const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
        // Every loss is 0 if the vocabulary has one token.
        const auto losses = parity.output("losses", DType::f32, {s.rows});
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(CrossEntropy{.losses = at[losses],
                           .logits = strided(at[logits].address, DType::f32, s, stride),
                           .targets = at[targets]},
              stream);
        });
      }
    }
  }
}

TEST_CASE("cuda: cross-entropy with a gradient of its own", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    for (const auto& s : all_sizes) {
      for (const std::int64_t padding : {0, 5}) {
        for (const auto offsets : {Parity::Offsets{0, 0}, Parity::Offsets{1, 1}}) {
          if (s.vocabulary > 10000 && (offsets.read == 1 || padding == 0)) continue;
          const std::int64_t columns = s.vocabulary + padding;
          const std::int64_t stride = columns + 2;  // two that nobody may write
          CAPTURE(name_of(dtype), s.rows, s.vocabulary, padding, offsets.read);
          Parity parity(devices, offsets);
          const auto logits =
              parity.input("logits", DType::f32, {s.rows, stride}, logits_of(s, stride, 10));
          const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
          const auto losses = parity.output("losses", DType::f32, {s.rows});
          const auto gradient = parity.add({.name = "gradient",
                                            .dtype = dtype,
                                            .shape = {s.rows, stride},
                                            .written = true,
                                            .stride = stride,
                                            .columns = columns});
          parity.compare([=](const Parity::Views& at, Stream stream) {
            run(CrossEntropy{.losses = at[losses],
                             .logits = strided(at[logits].address, DType::f32, s, stride),
                             .gradient = strided(at[gradient].address, dtype, s, stride),
                             .targets = at[targets],
                             .gradient_scale = gradient_scale,
                             .padding = padding},
                stream);
          });
        }
      }
    }
  }
}

TEST_CASE("cuda: cross-entropy whose gradient lies over the logits", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    const auto narrow = static_cast<std::int64_t>(4 / size_of(dtype));
    for (const auto& s : all_sizes) {
      // Rows of the logits are contiguous without padding; padded rows are a multiple of 8 apart,
      // as matrix products like them.
      for (const bool padded : {false, true}) {
        for (const std::int64_t offset : {0, 1}) {
          if (s.vocabulary > 10000 && (offset == 1 || !padded)) continue;
          const std::int64_t stride = padded ? (s.vocabulary + 7) / 8 * 8 : s.vocabulary;
          const std::int64_t padding = stride - s.vocabulary;
          CAPTURE(name_of(dtype), s.rows, s.vocabulary, padding, offset);
          Parity parity(devices, {offset, offset});
          const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
          const auto losses = parity.output("losses", DType::f32, {s.rows});
          const auto both = parity.add({.name = "gradient",
                                        .dtype = DType::f32,
                                        .shape = {s.rows, stride},
                                        .values = logits_of(s, stride, 10),
                                        .written = true,
                                        .read_as = dtype,
                                        .stride = narrow * stride,
                                        .columns = stride});
          parity.compare([=](const Parity::Views& at, Stream stream) {
            run(CrossEntropy{.losses = at[losses],
                             .logits = strided(at[both].address, DType::f32, s, stride),
                             .gradient = strided(at[both].address, dtype, s, narrow * stride),
                             .targets = at[targets],
                             .gradient_scale = gradient_scale,
                             .padding = padding},
                stream);
          });
        }
      }
    }
  }
}

TEST_CASE("cuda: cross-entropy of large logits", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  const Sizes s{33, 100};
  for (const double scale : {500.0, 1e30}) {
    CAPTURE(scale);
    Parity parity(devices);
    const auto logits = parity.input("logits", DType::f32, {s.rows, s.vocabulary}, scale);
    const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
    const auto losses = parity.output("losses", DType::f32, {s.rows});
    const auto gradient = parity.output("gradient", DType::f32, {s.rows, s.vocabulary}, 1e-4);
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(CrossEntropy{.losses = at[losses],
                       .logits = at[logits],
                       .gradient = at[gradient],
                       .targets = at[targets]},
          stream);
    });
  }
}

TEST_CASE("cuda: cross-entropy passes NaN and infinity on", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  const Sizes s{3, 300};
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    CAPTURE(bad);
    Values values = logits_of(s, s.vocabulary, 3);
    values[300 + 150] = bad;
    Parity parity(devices);
    const auto logits = parity.input("logits", DType::f32, {s.rows, s.vocabulary}, values);
    const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
    const auto losses = parity.state("losses", DType::f32, {s.rows}, Values(3, 0.0));
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(CrossEntropy{.losses = at[losses], .logits = at[logits], .targets = at[targets]}, stream);
    });
  }
}

}  // namespace sluice::test
