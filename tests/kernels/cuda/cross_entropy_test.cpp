#include <algorithm>
#include <cmath>

#include "kernels/cross_entropy.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::cross_entropy_test {
namespace {

/// Columns of a vocabulary, and those before and after them, which other ranks have.
struct Sizes {
  std::int64_t rows, before, columns, after;

  std::int64_t vocabulary() const { return before + columns + after; }
};
constexpr Sizes whole_sizes[] = {{5, 0, 1, 0},
                                 {33, 0, 3, 0},
                                 {1, 0, 8, 0},
                                 {33, 0, 33, 0},
                                 {5, 0, 48, 0},
                                 {9, 0, 100, 0},
                                 {5, 0, 768, 0},
                                 {3, 0, 1600, 0},
                                 {5, 0, 2050, 0},
                                 {1, 0, 50257, 0},
                                 // too long for a block's shared memory
                                 {1, 0, 59000, 0}};
constexpr Sizes part_sizes[] = {{5, 0, 25, 25},   {33, 17, 17, 16}, {5, 34, 16, 0},
                                {3, 129, 128, 0}, {4, 86, 86, 85},  {3, 0, 1, 0},
                                {3, 1, 0, 0},     {9, 3, 64, 2},    {5, 8, 2050, 100}};
constexpr double gradient_scale = 1.0 / 48;

/// Returns targets in all parts of the vocabulary, including the first and last of this part. A row
/// among several has none.
Values targets_of(const Sizes& s) {
  Values targets = random_values(s.rows, 77);
  for (auto& target : targets)
    target = std::floor((target + 1) / 2 * static_cast<double>(s.vocabulary()));
  if (s.rows > 4) targets[2] = no_target;
  if (s.columns == 0) return targets;
  targets.front() = static_cast<double>(s.before + s.columns - 1);
  if (targets.size() > 1) targets.back() = static_cast<double>(s.before);
  return targets;
}

/// Rows of logits `stride` apart. What is between the rows must not matter: NaN.
Values logits_of(const Sizes& s, std::int64_t stride, double scale) {
  const Values random = random_values(s.rows * s.columns, 3, scale);
  Values result(static_cast<std::size_t>(s.rows * stride), NAN);
  for (std::int64_t row = 0; row < s.rows; ++row)
    std::copy_n(random.begin() + row * s.columns, s.columns, result.begin() + row * stride);
  return result;
}

View strided(std::byte* address, DType dtype, const Sizes& s, std::int64_t stride) {
  View view(address, dtype, {s.rows, s.columns});
  view.strides[0] = stride;
  return view;
}

/// Returns partial results of three ranks, the second of which has the logits: [3, rows, 3].
Values partials_of(const Sizes& s, std::int64_t stride, double scale) {
  Values result;
  const Values targets = targets_of(s), logits = logits_of(s, stride, scale);
  const Values others = random_values(s.rows * 4, 9, scale);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t row = 0; row < static_cast<std::size_t>(s.rows); ++row) {
      const double* other = others.data() + row * 4 + rank;  // rank is 0 or 2
      const auto target = static_cast<std::int64_t>(targets[row]);
      const bool here = s.before <= target && target < s.before + s.columns;
      const bool there = rank == 0 ? target < s.before : target >= s.before + s.columns;
      if (rank != 1) {
        result.insert(result.end(),
                      {other[0], 1 + std::abs(other[1]) / scale, there ? other[0] - 0.5 : 0.0});
        continue;
      }
      const double* x = logits.data() + static_cast<std::int64_t>(row) * stride;
      const double top = s.columns == 0 ? -INFINITY : *std::max_element(x, x + s.columns);
      double sum = 0;
      for (std::int64_t j = 0; j < s.columns; ++j)
        sum += std::exp(x[j] - top);
      result.insert(result.end(), {top, sum, here ? x[target - s.before] : 0.0});
    }
  }
  return result;
}

}  // namespace

TEST_CASE("cuda: cross-entropy without a gradient", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const auto& s : whole_sizes) {
    for (const std::int64_t gap : {0, 3}) {
      for (const auto offsets : all_offsets) {
        if (s.columns > 10000 && offsets.read != offsets.written) continue;
        if (!in_form(2, {&s - whole_sizes, gap, offsets.read + 2 * offsets.written})) continue;
        const std::int64_t stride = s.columns + gap;
        CAPTURE(s.rows, s.columns, stride, offsets.read, offsets.written);
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
    for (const auto& s : whole_sizes) {
      for (const std::int64_t padding : {0, 5}) {
        for (const auto offsets : {Parity::Offsets{0, 0}, Parity::Offsets{1, 1}}) {
          if (s.columns > 10000 && (offsets.read == 1 || padding == 0)) continue;
          if (!in_form(2,
                       {static_cast<std::int64_t>(dtype), &s - whole_sizes, padding, offsets.read}))
            continue;
          const std::int64_t columns = s.columns + padding;
          const std::int64_t stride = columns + 2;  // two that nobody may write
          CAPTURE(name_of(dtype), s.rows, s.columns, padding, offsets.read);
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
    for (const auto& s : whole_sizes) {
      // Rows of the logits are contiguous without padding; padded rows are a multiple of 8 apart,
      // as matrix products like them.
      for (const bool padded : {false, true}) {
        for (const std::int64_t offset : {0, 1}) {
          if (s.columns > 10000 && (offset == 1 || !padded)) continue;
          if (!in_form(2, {static_cast<std::int64_t>(dtype), &s - whole_sizes, padded, offset}))
            continue;
          const std::int64_t stride = padded ? (s.columns + 7) / 8 * 8 : s.columns;
          const std::int64_t padding = stride - s.columns;
          CAPTURE(name_of(dtype), s.rows, s.columns, padding, offset);
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
  const Sizes s{33, 0, 100, 0};
  for (const double scale : {500.0, 1e30}) {
    CAPTURE(scale);
    Parity parity(devices);
    const auto logits = parity.input("logits", DType::f32, {s.rows, s.columns}, scale);
    const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
    const auto losses = parity.output("losses", DType::f32, {s.rows});
    const auto gradient = parity.output("gradient", DType::f32, {s.rows, s.columns}, 1e-4);
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
  const Sizes s{3, 0, 300, 0};
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    CAPTURE(bad);
    Values values = logits_of(s, s.columns, 3);
    values[300 + 150] = bad;
    Parity parity(devices);
    const auto logits = parity.input("logits", DType::f32, {s.rows, s.columns}, values);
    const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
    const auto losses = parity.state("losses", DType::f32, {s.rows}, Values(3, 0.0));
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(CrossEntropy{.losses = at[losses], .logits = at[logits], .targets = at[targets]}, stream);
    });
  }
}

TEST_CASE("cuda: partials of cross-entropy over a part of the vocabulary", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const auto& s : part_sizes) {
    for (const std::int64_t gap : {0, 3}) {
      for (const auto offsets : all_offsets) {
        for (const double scale : {10.0, 1e4}) {
          const std::int64_t stride = s.columns + gap, address = offsets.read + 2 * offsets.written;
          if (!in_form(2, {&s - part_sizes, gap, address, scale > 10})) continue;
          CAPTURE(s.rows, s.before, s.columns, stride, offsets.read, offsets.written, scale);
          Parity parity(devices, offsets);
          const auto logits =
              parity.input("logits", DType::f32, {s.rows, stride}, logits_of(s, stride, scale));
          const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
          const auto partials = parity.output("partials", DType::f32, {s.rows, 3});
          parity.compare([=](const Parity::Views& at, Stream stream) {
            run(CrossEntropyPartials{.partials = at[partials],
                                     .logits = strided(at[logits].address, DType::f32, s, stride),
                                     .targets = at[targets],
                                     .first = s.before},
                stream);
          });
        }
      }
    }
  }
}

TEST_CASE("cuda: partials of impossible logits, and of bad ones", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  const Sizes s{4, 7, 300, 0};
  for (const double bad :
       {-static_cast<double>(INFINITY), static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    CAPTURE(bad);
    Values values = logits_of(s, s.columns, 3);
    std::fill_n(values.begin() + 300, 600, -INFINITY);  // two rows
    values[600 + 150] = bad;
    values[900 + 150] = bad;
    Parity parity(devices);
    const auto logits = parity.input("logits", DType::f32, {s.rows, s.columns}, values);
    const auto targets = parity.input("targets", DType::i32, {s.rows}, Values(4, 0.0));
    const auto partials = parity.state("partials", DType::f32, {s.rows, 3}, Values(12, 0.0));
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(CrossEntropyPartials{.partials = at[partials],
                               .logits = at[logits],
                               .targets = at[targets],
                               .first = s.before},
          stream);
    });
  }
}

TEST_CASE("cuda: cross-entropy of partials, with a gradient of its own or none", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    for (const auto& s : part_sizes) {
      for (const std::int64_t padding : {0, 5}) {
        for (const auto offsets : {Parity::Offsets{0, 0}, Parity::Offsets{1, 1}}) {
          for (const double scale : {10.0, 1e4}) {
            if (!in_form(2, {static_cast<std::int64_t>(dtype), &s - part_sizes, padding,
                             offsets.read, scale > 10}))
              continue;
            const std::int64_t columns = s.columns + padding;
            const std::int64_t stride = columns + 2;  // two that nobody may write
            CAPTURE(name_of(dtype), s.rows, s.before, s.columns, padding, offsets.read, scale);
            Parity parity(devices, offsets);
            const auto logits =
                parity.input("logits", DType::f32, {s.rows, stride}, logits_of(s, stride, scale));
            const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
            const auto partials =
                parity.input("partials", DType::f32, {3, s.rows, 3}, partials_of(s, stride, scale));
            const auto losses = parity.output("losses", DType::f32, {s.rows});
            const auto unrecorded = parity.output("losses alone", DType::f32, {s.rows});
            const auto gradient = parity.add({.name = "gradient",
                                              .dtype = dtype,
                                              .shape = {s.rows, stride},
                                              .written = true,
                                              .stride = stride,
                                              .columns = columns});
            parity.compare([=](const Parity::Views& at, Stream stream) {
              CrossEntropyOfPartials op{
                  .losses = at[unrecorded],
                  .logits = strided(at[logits].address, DType::f32, s, stride),
                  .targets = at[targets],
                  .partials = at[partials],
                  .first = s.before,
                  .gradient_scale = gradient_scale,
                  .padding = padding};
              run(op, stream);
              op.losses = at[losses];
              op.gradient = strided(at[gradient].address, dtype, s, stride);
              run(op, stream);
            });
          }
        }
      }
    }
  }
}

TEST_CASE("cuda: cross-entropy of partials whose gradient lies over the logits", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    const auto narrow = static_cast<std::int64_t>(4 / size_of(dtype));
    for (const auto& s : part_sizes) {
      // Rows of the logits are contiguous without padding; padded rows are a multiple of 8 apart.
      for (const bool padded : {false, true}) {
        for (const std::int64_t offset : {0, 1}) {
          const std::int64_t stride = padded ? (s.columns + 7) / 8 * 8 : s.columns;
          if (stride == 0) continue;
          const std::int64_t padding = stride - s.columns;
          CAPTURE(name_of(dtype), s.rows, s.before, s.columns, padding, offset);
          Parity parity(devices, {offset, offset});
          const auto targets = parity.input("targets", DType::i32, {s.rows}, targets_of(s));
          const auto partials =
              parity.input("partials", DType::f32, {3, s.rows, 3}, partials_of(s, stride, 10));
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
            run(CrossEntropyOfPartials{.losses = at[losses],
                                       .logits = strided(at[both].address, DType::f32, s, stride),
                                       .gradient =
                                           strided(at[both].address, dtype, s, narrow * stride),
                                       .targets = at[targets],
                                       .partials = at[partials],
                                       .first = s.before,
                                       .gradient_scale = gradient_scale,
                                       .padding = padding},
                stream);
          });
        }
      }
    }
  }
}

}  // namespace sluice::test::cross_entropy_test
