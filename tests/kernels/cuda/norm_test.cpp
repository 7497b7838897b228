#include "kernels/norm.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::norm_test {
namespace {

enum class Kind { layernorm, unbiased_layernorm, rmsnorm };

struct Sizes {
  std::int64_t rows, width;
};
constexpr Sizes all_sizes[] = {{1, 1},   {33, 3},   {70, 8},   {5, 33},   {33, 48},  {70, 64},
                               {5, 100}, {33, 768}, {5, 1600}, {1, 2050}, {5, 2048}, {3, 5001}};
constexpr Parity::Offsets offsets_of_rows[] = {{0, 0}, {1, 1}, {0, 1}};

/// Sizes and offsets for the backward pass. Few of them have rows of more than 768 columns, since
/// every 32 columns cost a block of 1024 threads for their sums. The two widest need more threads
/// than a block has, where each takes 16 bytes: of f32, and of 16 bits.
struct Rows {
  Sizes size;
  Parity::Offsets offsets;
};
std::vector<Rows> rows_for_backward() {
  std::vector<Rows> all;
  for (const auto& s : all_sizes)
    for (const auto offsets : offsets_of_rows)
      if (s.width <= 768) all.push_back({s, offsets});
  for (const auto& s : {Sizes{5, 1600}, Sizes{5, 2048}, Sizes{3, 4104}, Sizes{1, 8200}})
    all.push_back({s, {0, 0}});
  all.push_back({{1, 2050}, {1, 1}});
  return all;
}

/// rstd of random rows, so that the backward pass can be tested without the forward pass.
Values positive(std::int64_t count, std::uint64_t seed) {
  Values values = random_values(count, seed);
  for (auto& value : values)
    value = 1.5 + value;
  return values;
}

void forward_case(const CudaDevices& devices, DType dtype, Sizes s, Parity::Offsets offsets,
                  bool with_branch, Kind kind = Kind::layernorm) {
  const bool centred = kind != Kind::rmsnorm, biased = kind == Kind::layernorm;
  const double mean = centred ? 0 : 0.5;
  CAPTURE(name_of(dtype), s.rows, s.width, offsets.read, offsets.written, with_branch, centred,
          biased);
  Parity parity(devices, offsets);
  Values shifted = random_values(s.rows * s.width, 1, 2);
  for (auto& value : shifted)
    value += mean;
  const auto in = parity.input("in", dtype, {s.rows, s.width}, shifted);
  const auto weight = parity.input("weight", dtype, {s.width});
  const auto bias = biased ? parity.input("bias", dtype, {s.width}) : Parity::Id{};
  const auto branch = with_branch ? parity.input("branch", dtype, {s.rows, s.width}) : Parity::Id{};
  const auto sum = with_branch ? parity.output("sum", dtype, {s.rows, s.width}, 0.0) : Parity::Id{};
  const auto out = parity.output("out", dtype, {s.rows, s.width});
  const auto means = centred ? parity.output("mean", DType::f32, {s.rows}) : Parity::Id{};
  const auto rstd = parity.output("rstd", DType::f32, {s.rows});
  parity.compare([=](const Parity::Views& at, Stream stream) {
    run(NormForward{.out = at[out],
                    .sum = with_branch ? at[sum] : View{},
                    .mean = centred ? at[means] : View{},
                    .rstd = at[rstd],
                    .in = at[in],
                    .branch = with_branch ? at[branch] : View{},
                    .weight = at[weight],
                    .bias = biased ? at[bias] : View{},
                    .epsilon = 1e-5},
        stream);
  });
}

struct Backward {
  bool with_sum = false;  ///< grad_sum is given
  bool in_place = false;  ///< and grad_in takes its place
  bool accumulate_weight = false, accumulate_bias = false;
};

void backward_case(const CudaDevices& devices, DType dtype, Sizes s, Parity::Offsets offsets,
                   Backward how, Kind kind = Kind::layernorm) {
  const bool centred = kind != Kind::rmsnorm, biased = kind == Kind::layernorm;
  CAPTURE(name_of(dtype), s.rows, s.width, offsets.read, offsets.written, how.with_sum,
          how.in_place, how.accumulate_weight, how.accumulate_bias, centred, biased);
  const std::int64_t count = s.rows * s.width;
  Parity parity(devices, offsets);
  const auto in = parity.input("normalized_in", dtype, {s.rows, s.width}, 2);
  const auto weight = parity.input("weight", dtype, {s.width});
  const auto grad_out = parity.input("grad_out", dtype, {s.rows, s.width});
  const auto mean = centred ? parity.input("mean", DType::f32, {s.rows}, 0.1) : Parity::Id{};
  const auto rstd = parity.input("rstd", DType::f32, {s.rows}, positive(s.rows, 6));
  // They start as NaN if nothing is accumulated.
  const auto grad_weight =
      parity.state("grad_weight", DType::f32, {s.width},
                   how.accumulate_weight ? random_values(s.width, 7) : Values{});
  const auto grad_bias =
      biased ? parity.state("grad_bias", DType::f32, {s.width},
                            how.accumulate_bias ? random_values(s.width, 8) : Values{})
             : Parity::Id{};
  const auto grad_in = parity.state("grad_in", dtype, {s.rows, s.width},
                                    how.in_place ? random_values(count, 9) : Values{});
  Parity::Id grad_sum = grad_in;
  if (how.with_sum && !how.in_place) grad_sum = parity.input("grad_sum", dtype, {s.rows, s.width});
  parity.compare([=](const Parity::Views& at, Stream stream) {
    run(NormBackward{.grad_in = at[grad_in],
                     .grad_weight = at[grad_weight],
                     .grad_bias = biased ? at[grad_bias] : View{},
                     .grad_out = at[grad_out],
                     .grad_sum = how.with_sum ? at[grad_sum] : View{},
                     .normalized_in = at[in],
                     .mean = centred ? at[mean] : View{},
                     .rstd = at[rstd],
                     .weight = at[weight],
                     .accumulate_weight = how.accumulate_weight,
                     .accumulate_bias = how.accumulate_bias},
        stream);
  });
}

}  // namespace

TEST_CASE("cuda: LayerNorm", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const auto& s : all_sizes)
      for (const auto offsets : offsets_of_rows)
        forward_case(devices, dtype, s, offsets, false);
}

TEST_CASE("cuda: LayerNorm of a sum", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const auto& s : all_sizes)
      for (const auto offsets : offsets_of_rows)
        forward_case(devices, dtype, s, offsets, true);
}

TEST_CASE("cuda: RMSNorm, alone and of a sum", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const auto& s : all_sizes)
      for (const auto offsets : offsets_of_rows)
        for (const bool with_branch : {false, true})
          forward_case(devices, dtype, s, offsets, with_branch, Kind::rmsnorm);
}

TEST_CASE("cuda: LayerNorm without a bias, in both directions", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    for (const auto& s : all_sizes)
      for (const auto offsets : offsets_of_rows)
        forward_case(devices, dtype, s, offsets, s.rows % 2 == 0, Kind::unbiased_layernorm);
    for (const auto& [size, offsets] : rows_for_backward())
      backward_case(devices, dtype, size, offsets, {.accumulate_weight = true},
                    Kind::unbiased_layernorm);
  }
}

TEST_CASE("cuda: LayerNorm far from zero does not lose the variance", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const double mean : {30.0, 1000.0}) {
    // Tests fp32 only: 16 bits cannot hold such rows. A rounding error of the mean itself moves the
    // result, and the CPU's own is larger where its loops are not vectorised, so the bound of the
    // output cannot hold here. The mean of squares less the square of the mean would be off by 3e-2
    // at a mean of 1000.
    Parity parity(devices);
    CAPTURE(mean);
    Values shifted = random_values(5 * 768, 1);
    for (auto& value : shifted)
      value += mean;
    const auto in = parity.input("in", DType::f32, {5, 768}, shifted);
    const auto weight = parity.input("weight", DType::f32, {768});
    const auto bias = parity.input("bias", DType::f32, {768});
    const auto out = parity.output("out", DType::f32, {5, 768}, 1e-6 * mean);
    const auto means = parity.output("mean", DType::f32, {5}, 1e-6);
    const auto rstd = parity.output("rstd", DType::f32, {5}, 1e-5);
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(NormForward{.out = at[out],
                      .mean = at[means],
                      .rstd = at[rstd],
                      .in = at[in],
                      .weight = at[weight],
                      .bias = at[bias]},
          stream);
    });
  }
}

TEST_CASE("cuda: LayerNorm backward", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const auto& [size, offsets] : rows_for_backward())
      backward_case(devices, dtype, size, offsets, {});
}

TEST_CASE("cuda: LayerNorm backward with a gradient of the sum", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    for (const auto& [size, offsets] : rows_for_backward()) {
      backward_case(devices, dtype, size, offsets, {.with_sum = true, .accumulate_weight = true});
      backward_case(devices, dtype, size, offsets,
                    {.with_sum = true, .in_place = true, .accumulate_bias = true});
    }
  }
}

TEST_CASE("cuda: RMSNorm backward", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    for (const auto& [size, offsets] : rows_for_backward()) {
      backward_case(devices, dtype, size, offsets, {}, Kind::rmsnorm);
      backward_case(devices, dtype, size, offsets,
                    {.with_sum = true, .in_place = true, .accumulate_weight = true}, Kind::rmsnorm);
    }
    for (const auto& s : {Sizes{4099, 33}, Sizes{8209, 64}})  // many blocks
      backward_case(devices, dtype, s, {0, 0}, {.accumulate_weight = true}, Kind::rmsnorm);
  }
}

TEST_CASE("cuda: LayerNorm backward over many rows", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // Both kernels, with many blocks of which the last has fewer rows; the second size has more rows
  // than 512 blocks take at 16 each.
  for (const DType dtype : cuda_dtypes)
    for (const auto& s : {Sizes{4099, 33}, Sizes{8209, 64}})
      backward_case(devices, dtype, s, {0, 0},
                    {.accumulate_weight = true, .accumulate_bias = true});
}

TEST_CASE("cuda: LayerNorm backward of rows with more columns than blocks have counters",
          "[cuda]") {
  const CudaDevices devices;
  if (devices) backward_case(devices, DType::f32, {17, 1025 * 128}, {0, 0}, {});
}

}  // namespace sluice::test::norm_test
