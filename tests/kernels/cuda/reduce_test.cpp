#include <cmath>

#include "kernels/reduce.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::reduce_test {
namespace {

constexpr Parity::Offsets both_offsets[] = {{0, 0}, {1, 1}};

}  // namespace

TEST_CASE("cuda: sums down columns", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  struct Sizes {
    std::int64_t rows, columns;
  };
  for (const DType dtype : cuda_dtypes) {
    for (const auto& s : {Sizes{1, 1},
                          {5, 3},
                          {70, 8},
                          {33, 33},
                          {5, 48},
                          {33, 100},
                          {70, 768},
                          {33, 1600},
                          {5, 2050},
                          {3001, 5},
                          {1025, 70},
                          {130, 768},               // two parts
                          {200, 32 * 1024 + 5}}) {  // more blocks of columns than counters
      const bool large = s.columns > 32 * 1024;     // slow when emulated: each offset once
      for (const auto offsets : both_offsets) {
        for (const bool accumulate : {false, true}) {
          if (large && offsets.read != (accumulate ? 1 : 0)) continue;
          CAPTURE(name_of(dtype), s.rows, s.columns, offsets.read, accumulate);
          Parity parity(devices, offsets);
          const auto in = parity.input("in", dtype, {s.rows, s.columns});
          const auto out = parity.state("out", DType::f32, {s.columns},
                                        accumulate ? random_values(s.columns, 2) : Values{});
          parity.compare([=](const Parity::Views& at, Stream stream) {
            run(ColumnSum{.out = at[out], .in = at[in], .accumulate = accumulate}, stream);
          });
        }
      }
    }
  }
}

TEST_CASE("cuda: sums down the first columns of wider rows", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const std::int64_t stride : {65, 72}) {
      CAPTURE(name_of(dtype), stride);
      Parity parity(devices);
      const auto in = parity.input("in", dtype, {130, stride});
      const auto out = parity.output("out", DType::f32, {64});
      parity.compare([=](const Parity::Views& at, Stream stream) {
        View first = at[in];
        first.shape[1] = 64;
        run(ColumnSum{.out = at[out], .in = first}, stream);
      });
    }
}

TEST_CASE("cuda: sums of all", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const std::int64_t count : {1, 3, 31, 256, 1025, 70000}) {
    for (const auto offsets : both_offsets) {
      for (const bool accumulate : {false, true}) {
        CAPTURE(count, offsets.read, accumulate);
        // Some of the numbers are large: only sums in f64 find the small ones again.
        Values values = random_values(count, 1);
        if (count > 30) {
          values[3] = 1e8;
          values[29] = -1e8;
        }
        Parity parity(devices, offsets);
        const auto in = parity.input("in", DType::f32, {count}, values);
        const auto out =
            parity.state("out", DType::f32, {1}, accumulate ? Values{0.25} : Values{}, 3e-7);
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(Sum{.out = at[out], .in = at[in], .scale = 0.125, .accumulate = accumulate}, stream);
        });
      }
    }
  }
}

/// The CPU adds up to 1024 squares in fp32, one after another where a build does not vectorise.
constexpr double norm_tolerance = 4e-6;

TEST_CASE("cuda: squared norms of blocks", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  const std::int64_t block = SquaredNorm{}.block;
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{33}, std::int64_t{5003}, block - 1,
                                   block, block + 1, 3 * block + 77}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const auto offsets : both_offsets) {
        CAPTURE(count, name_of(dtype), offsets.read);
        Parity parity(devices, offsets);
        const auto in = parity.input("in", dtype, {count}, 3);
        const auto partial =
            parity.output("partial", DType::f64, {(count + block - 1) / block}, norm_tolerance);
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(SquaredNorm{.partial = at[partial], .in = at[in]}, stream);
        });
      }
    }
  }
}

TEST_CASE("cuda: squared norms of many arrays at once", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // More than one launch has, in both types, some at odd addresses, some with an end within a
  // block.
  constexpr int arrays = 300;
  constexpr std::int64_t block = 64, each = 4 * block, longest = 3 * block + 5;
  Parity parity(devices);
  std::vector<Parity::Id> in;
  for (const DType dtype : {DType::f32, DType::bf16})
    in.push_back(parity.input("in", dtype, {arrays * each}, 3));
  const auto partial = parity.state("partial", DType::f64, {arrays * 4},
                                    Values(std::size_t{arrays} * 4, -1.0), norm_tolerance);
  parity.compare([=](const Parity::Views& at, Stream stream) {
    std::vector<SquaredNorm> norms;
    for (int i = 0; i < arrays; ++i) {
      const View& from = at[in[static_cast<std::size_t>(i % 2)]];
      const std::int64_t begin = i * each + i % 5, count = 1 + 37 * i % longest;
      norms.push_back(
          {.partial = {at[partial].address + std::size_t{32} * static_cast<std::size_t>(i),
                       DType::f64,
                       {(count + block - 1) / block}},
           .in = {from.address + static_cast<std::size_t>(begin) * size_of(from.dtype),
                  from.dtype,
                  {count}},
           .block = block});
    }
    run(SquaredNormBatch{norms}, stream);
    run(SquaredNormBatch{}, stream);
  });
}

TEST_CASE("cuda: squared norms of blocks that fours do not divide", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // Chunks of few rows have such blocks. The array is aligned, and most of its blocks are not.
  for (const std::int64_t block : {3, 6, 7, 10, 4098})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::int64_t count : {block, 4 * block, 5 * block + 2}) {
        CAPTURE(block, name_of(dtype), count);
        Parity parity(devices);
        const auto in = parity.input("in", dtype, {count}, 3);
        const auto partial =
            parity.output("partial", DType::f64, {(count + block - 1) / block}, norm_tolerance);
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(SquaredNorm{.partial = at[partial], .in = at[in], .block = block}, stream);
        });
      }
}

TEST_CASE("cuda: squared norms of numbers that are not finite", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    Values values = random_values(SquaredNorm{}.block + 100, 1);
    values[5000] = bad;
    Parity parity(devices);
    const auto in = parity.input("in", DType::f32, {SquaredNorm{}.block + 100}, values);
    const auto partial = parity.output("partial", DType::f64, {2}, norm_tolerance);
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(SquaredNorm{.partial = at[partial], .in = at[in]}, stream);
    });
  }
}

TEST_CASE("cuda: the clipping factor", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const std::int64_t count : {1, 2, 33, 3001}) {
    for (const double limit : {0.0, 1.0, 1e6}) {
      for (const double loss_scale : {1.0, 1024.0}) {
        for (const auto offsets : both_offsets) {
          CAPTURE(count, limit, loss_scale, offsets.read);
          Values squares = random_values(count, 1);
          for (auto& value : squares)
            value = value * value + 0.1;
          Parity parity(devices, offsets);
          const auto partial = parity.input("partial", DType::f64, {count}, squares);
          const auto norm = parity.output("norm", DType::f64, {1}, 1e-12);
          const auto factor = parity.output("factor", DType::f32, {1}, 2e-7);
          parity.compare([=](const Parity::Views& at, Stream stream) {
            run(ClipFactor{.norm = at[norm],
                           .factor = at[factor],
                           .partial = at[partial],
                           .limit = limit,
                           .loss_scale = loss_scale},
                stream);
          });
        }
      }
    }
  }
}

TEST_CASE("cuda: the clipping factor of a norm that is not finite is NaN", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    for (const double limit : {0.0, 1.0}) {
      Values squares(40, 0.5);
      squares[17] = bad;
      Parity parity(devices);
      const auto partial = parity.input("partial", DType::f64, {40}, squares);
      const auto norm = parity.state("norm", DType::f64, {1}, {1.0});
      const auto factor = parity.state("factor", DType::f32, {1}, {1.0});
      parity.compare([=](const Parity::Views& at, Stream stream) {
        run(
            ClipFactor{
                .norm = at[norm], .factor = at[factor], .partial = at[partial], .limit = limit},
            stream);
      });
    }
  }
}

}  // namespace sluice::test::reduce_test
