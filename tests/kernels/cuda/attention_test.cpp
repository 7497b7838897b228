#include "kernels/attention.h"
#include "kernels/cuda/queue.h"
#include "tests/kernels/attention_parts.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::attention_test {
namespace {

struct Sizes {
  std::int64_t batch, length;
  int heads;
  std::int64_t head_width;
  int group = 1;  ///< query heads that share a head of k and v

  std::int64_t width() const { return heads * head_width; }
  AttentionHeads all_heads() const { return {heads, heads / group}; }
  std::int64_t row() const { return all_heads().in_row() * head_width; }
};
// Every width meets a length that ends within a tile, one that fills it, or one position of the
// next; each length is there.
constexpr Sizes narrow_sizes[] = {{1, 1, 1, 1},   {2, 7, 3, 5},   {3, 130, 1, 1},  {1, 65, 2, 5},
                                  {1, 63, 2, 16}, {2, 64, 1, 32}, {1, 129, 1, 33}, {1, 200, 2, 8}};
constexpr Sizes wide_sizes[] = {{1, 127, 2, 64}, {2, 65, 1, 80}, {1, 64, 2, 96}, {1, 130, 1, 128},
                                {1, 200, 1, 64}, {1, 1, 3, 128}, {1, 70, 1, 100}};
/// In kernels of their own from compute capability 8.0 on.
constexpr Sizes widest_sizes[] = {{1, 130, 2, 256}, {2, 64, 1, 160}, {1, 33, 4, 256, 2},
                                  {1, 1, 1, 136},   {1, 79, 2, 200}, {1, 65, 2, 144, 2}};
constexpr DropoutMask some_mask{.key = 0xFEDCBA9876543210, .probability = 0.2f, .first_sample = 7};

/// Returns the types in which a device of this capability computes attention.
std::vector<DType> dtypes_of(int capability) {
  if (capability < 80) return {DType::f32, DType::f16};
  return {DType::f32, DType::bf16, DType::f16};
}

/// The forward pass on the CPU gives the backward pass its inputs.
struct Forward {
  Values out, log_sum_exp;
};
Forward forward_on_cpu(const Sizes& s, DType dtype, const Values& qkv, const DropoutMask& mask) {
  Array in(dtype, qkv);
  Array out(dtype, s.batch * s.length * s.width());
  Array log_sum_exp(DType::f32, s.batch * s.heads * s.length);
  launch_cpu(AttentionForward{.out = out.view({s.batch, s.length, s.width()}),
                              .log_sum_exp = log_sum_exp.view({s.batch, s.heads, s.length}),
                              .qkv = in.view({s.batch, s.length, s.row()}),
                              .heads = s.all_heads(),
                              .mask = mask});
  return {out.values(), log_sum_exp.values()};
}

void forward_case(const CudaDevices& devices, DType dtype, const Sizes& s, Parity::Offsets offsets,
                  const DropoutMask& mask, double scale = 1.5, bool wgmma = false) {
  CAPTURE(devices.capability(), name_of(dtype), s.batch, s.length, s.heads, s.head_width, s.group,
          offsets.read, offsets.written, mask.probability, scale, wgmma);
  Parity parity(devices, offsets);
  const auto qkv = parity.input("qkv", dtype, {s.batch, s.length, s.row()}, scale);
  const auto out = parity.output("out", dtype, {s.batch, s.length, s.width()});
  const auto log_sum_exp = parity.output("log_sum_exp", DType::f32, {s.batch, s.heads, s.length});
  parity.compare([=](const Parity::Views& at, Stream stream) {
    run(AttentionForward{.out = at[out],
                         .log_sum_exp = at[log_sum_exp],
                         .qkv = at[qkv],
                         .heads = s.all_heads(),
                         .mask = mask,
                         .wgmma = wgmma},
        stream);
  });
}

void wgmma_case(const CudaDevices& devices, DType dtype, const Sizes& s) {
  forward_case(devices, dtype, s, {0, 0}, {}, 1.5, true);
}

void backward_case(const CudaDevices& devices, DType dtype, const Sizes& s, Parity::Offsets offsets,
                   const DropoutMask& mask, double scale = 1.5) {
  CAPTURE(devices.capability(), name_of(dtype), s.batch, s.length, s.heads, s.head_width, s.group,
          offsets.read, offsets.written, mask.probability, scale);
  const Values values = random_values(s.batch * s.length * s.row(), 1, scale);
  const Forward forward = forward_on_cpu(s, dtype, values, mask);
  Parity parity(devices, offsets);
  const auto qkv = parity.input("qkv", dtype, {s.batch, s.length, s.row()}, values);
  const auto out = parity.input("out", dtype, {s.batch, s.length, s.width()}, forward.out);
  const auto log_sum_exp =
      parity.input("log_sum_exp", DType::f32, {s.batch, s.heads, s.length}, forward.log_sum_exp);
  const auto grad_out = parity.input("grad_out", dtype, {s.batch, s.length, s.width()});
  const auto grad_qkv =
      parity.output("grad_qkv", dtype, {s.batch, s.length, s.row()}, 2 * tolerance_of(dtype));
  parity.compare([=](const Parity::Views& at, Stream stream) {
    run(AttentionBackward{.grad_qkv = at[grad_qkv],
                          .grad_out = at[grad_out],
                          .out = at[out],
                          .log_sum_exp = at[log_sum_exp],
                          .qkv = at[qkv],
                          .heads = s.all_heads(),
                          .mask = mask},
        stream);
  });
}

/// Calls `body(devices, dtype, sizes)` for every type that the capability has. The short form has
/// half of them at capability 80 and the other half at 90, whose kernels differ little.
template <std::size_t count, class Body>
void each_case(int capability, const Sizes (&sizes)[count], Body&& body) {
  const CudaDevices devices(capability);
  if (!devices) return;
  std::int64_t place = capability == 90;
  for (const DType dtype : dtypes_of(devices.capability()))
    for (const auto& s : sizes)
      if (capability < 80 || in_form(2, {place++})) body(devices, dtype, s);
}

void forward_cases(int capability, const auto& sizes) {
  each_case(capability, sizes, [](const CudaDevices& devices, DType dtype, const Sizes& s) {
    forward_case(devices, dtype, s, {0, 0}, {});
  });
}

void backward_cases(int capability, const auto& sizes) {
  each_case(capability, sizes, [](const CudaDevices& devices, DType dtype, const Sizes& s) {
    backward_case(devices, dtype, s, {0, 0}, {});
  });
}

void dropout_cases(int capability) {
  constexpr Sizes sizes[] = {{2, 7, 2, 5}, {1, 65, 3, 33}, {2, 130, 1, 64}};
  each_case(capability, sizes, [](const CudaDevices& devices, DType dtype, const Sizes& s) {
    forward_case(devices, dtype, s, {0, 0}, some_mask);
    backward_case(devices, dtype, s, {0, 0}, some_mask);
  });
}

/// Groups of heads for both kinds of kernels, with lengths of several tiles.
void grouped_cases(int capability) {
  constexpr Sizes sizes[] = {{2, 7, 6, 5, 3},    {1, 200, 4, 32, 2}, {1, 130, 3, 64, 3},
                             {2, 65, 4, 128, 2}, {1, 64, 2, 96, 2},  {1, 33, 8, 8, 8}};
  each_case(capability, sizes, [](const CudaDevices& devices, DType dtype, const Sizes& s) {
    for (const DropoutMask& mask : {DropoutMask{}, some_mask}) {
      forward_case(devices, dtype, s, {0, 0}, mask);
      backward_case(devices, dtype, s, {0, 0}, mask);
    }
  });
}

struct Device {
  CudaDevice& device;

  DeviceArray array(DType dtype, const Values& values) { return {device, dtype, values}; }
  Stream stream() const { return device.stream(); }
  void finish() { device.fetch(); }
};

void parts_cases(int capability) {
  const CudaDevices devices(capability);
  if (!devices) return;
  Device device{*devices.runs().front()};
  for (const DType dtype : dtypes_of(devices.capability()))
    for (const std::int64_t head_width : {5, 64})
      check_parts_of_heads(device, dtype, head_width);
}

void misaligned_cases(int capability) {
  constexpr Sizes sizes[] = {{2, 33, 2, 5}, {1, 70, 1, 32}, {1, 65, 1, 64}};
  each_case(capability, sizes, [](const CudaDevices& devices, DType dtype, const Sizes& s) {
    for (const auto offsets : {Parity::Offsets{1, 1}, Parity::Offsets{0, 1}}) {
      forward_case(devices, dtype, s, offsets, {});
      backward_case(devices, dtype, s, offsets, {});
    }
  });
}

}  // namespace

TEST_CASE("cuda: attention of narrow heads at capability 75", "[cuda]") {
  forward_cases(75, narrow_sizes);
}
TEST_CASE("cuda: attention of narrow heads at capability 80", "[cuda]") {
  forward_cases(80, narrow_sizes);
}
TEST_CASE("cuda: attention of narrow heads at capability 90", "[cuda]") {
  forward_cases(90, narrow_sizes);
}
TEST_CASE("cuda: attention of wide heads at capability 75", "[cuda]") {
  forward_cases(75, wide_sizes);
}
TEST_CASE("cuda: attention of wide heads at capability 80", "[cuda]") {
  forward_cases(80, wide_sizes);
}
TEST_CASE("cuda: attention of wide heads at capability 90", "[cuda]") {
  forward_cases(90, wide_sizes);
}
TEST_CASE("cuda: attention backward of narrow heads at capability 75", "[cuda]") {
  backward_cases(75, narrow_sizes);
}
TEST_CASE("cuda: attention backward of narrow heads at capability 80", "[cuda]") {
  backward_cases(80, narrow_sizes);
}
TEST_CASE("cuda: attention backward of narrow heads at capability 90", "[cuda]") {
  backward_cases(90, narrow_sizes);
}
TEST_CASE("cuda: attention backward of wide heads at capability 75", "[cuda]") {
  backward_cases(75, wide_sizes);
}
TEST_CASE("cuda: attention backward of wide heads at capability 80", "[cuda]") {
  backward_cases(80, wide_sizes);
}
TEST_CASE("cuda: attention backward of wide heads at capability 90", "[cuda]") {
  backward_cases(90, wide_sizes);
}

TEST_CASE("cuda: attention of the widest heads at capability 80", "[cuda]") {
  forward_cases(80, widest_sizes);
  backward_cases(80, widest_sizes);
}
TEST_CASE("cuda: attention of the widest heads at capability 90", "[cuda]") {
  forward_cases(90, widest_sizes);
  backward_cases(90, widest_sizes);
}
TEST_CASE("cuda: attention of the widest heads without kernels of their own", "[cuda]") {
  const CudaDevices old(75), drops(80);
  if (!old || !drops) return;
  constexpr Sizes sizes{1, 33, 4, 256, 2};
  backward_case(old, DType::f16, sizes, {0, 0}, {});
  forward_case(old, DType::f16, sizes, {0, 0}, {});
  backward_case(drops, DType::bf16, sizes, {0, 0}, some_mask);
  forward_case(drops, DType::bf16, sizes, {0, 0}, some_mask);
}

TEST_CASE("cuda: attention with shared heads of k and v at capability 75", "[cuda]") {
  grouped_cases(75);
}
TEST_CASE("cuda: attention with shared heads of k and v at capability 80", "[cuda]") {
  grouped_cases(80);
}
TEST_CASE("cuda: attention with shared heads of k and v at capability 90", "[cuda]") {
  grouped_cases(90);
}

TEST_CASE("cuda: attention drops the CPU's probabilities at capability 75", "[cuda]") {
  dropout_cases(75);
}
TEST_CASE("cuda: attention drops the CPU's probabilities at capability 80", "[cuda]") {
  dropout_cases(80);
}
TEST_CASE("cuda: attention drops the CPU's probabilities at capability 90", "[cuda]") {
  dropout_cases(90);
}
TEST_CASE("cuda: parts of the heads attend as the whole at capability 75", "[cuda]") {
  parts_cases(75);
}
TEST_CASE("cuda: parts of the heads attend as the whole at capability 80", "[cuda]") {
  parts_cases(80);
}
TEST_CASE("cuda: parts of the heads attend as the whole at capability 90", "[cuda]") {
  parts_cases(90);
}
TEST_CASE("cuda: attention at odd addresses at capability 75", "[cuda]") {
  misaligned_cases(75);
}
TEST_CASE("cuda: attention at odd addresses at capability 90", "[cuda]") {
  misaligned_cases(90);
}

TEST_CASE("cuda: attention backward goes through a batch in parts if the workspace is small",
          "[cuda]") {
  constexpr Sizes sizes[] = {{3, 33, 2, 16}, {3, 33, 2, 5}};
  constexpr std::size_t two_sequences =
      cuda::arrivals_bytes + 2 * 2 * 128 * 16;  // heads, rows of a tile, bytes of a row
  each_case(80, sizes, [](const CudaDevices& devices, DType dtype, const Sizes& s) {
    for (CudaDevice* device : devices.runs())
      device->runtime().set_workspace(device->stream(), device->take(two_sequences), two_sequences);
    for (const DropoutMask& mask : {DropoutMask{}, some_mask})
      backward_case(devices, dtype, s, {0, 0}, mask);
  });
}

TEST_CASE("cuda: attention of large scores", "[cuda]") {
  // Scores of some hundreds: exp alone would overflow.
  constexpr Sizes sizes[] = {{1, 70, 2, 16}};
  for (const int capability : {75, 80, 90})
    each_case(capability, sizes, [](const CudaDevices& devices, DType dtype, const Sizes& s) {
      forward_case(devices, dtype, s, {0, 0}, {}, 15);
    });
}

TEST_CASE("cuda: attention by wgmma", "[cuda]") {
  // Lengths around the 64 rows of a warpgroup and the 128 of a tile, up to more tiles than slots.
  constexpr Sizes sizes[] = {{1, 1, 1, 64},      {2, 63, 2, 64},      {1, 129, 3, 64},
                             {1, 500, 1, 64},    {1, 64, 1, 128},     {2, 128, 1, 40},
                             {1, 65, 2, 8},      {1, 300, 1, 128},    {1, 200, 2, 80},
                             {2, 130, 6, 64, 3}, {1, 200, 4, 128, 2}, {1, 65, 3, 40, 3}};
  const CudaDevices devices(90);
  if (!devices) return;
  std::int64_t place = 0;
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const auto& s : sizes)
      if (in_form(2, {place++})) wgmma_case(devices, dtype, s);
}

TEST_CASE("cuda: attention by wgmma in many blocks", "[cuda]") {
  // Every block has its own order of copies and products, and a wrong barrier shows in some.
  const CudaDevices devices(90);
  if (devices) wgmma_case(devices, DType::bf16, {2, 500, 4, 64});
}

}  // namespace sluice::test::attention_test
