#include "kernels/base/half.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "engine/tensor.h"
#include "kernels/adamw.h"
#include "kernels/base/run.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

namespace sluice::test::split_master_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::int64_t count = 2051;
constexpr std::int64_t row_blocks = 9;  // of u8 moments

/// Twenty updates; what is left of the master weights and both moments.
struct Trained {
  Bytes master, first, second, working;
};

Trained train(const DevicePtr& device, bool split, DType first_dtype, DType second_dtype) {
  const auto flat = [&](std::uint64_t seed) {
    return Tensor::from_host(device, {count}, DType::f32, random_values(count, seed));
  };
  std::vector<BFloat16> high;
  std::vector<std::int16_t> low;
  for (const double value : random_values(count, 1)) {
    const SplitMaster halves(static_cast<float>(value));
    high.push_back(halves.high);
    low.push_back(halves.low);
  }
  const Tensor master = flat(1);
  const Tensor working = Tensor::empty(device, {count}, DType::bf16);
  working.copy_bytes_from(std::as_bytes(std::span(high)));
  const Tensor remainder = Tensor::empty(device, {count}, DType::i16);
  remainder.copy_bytes_from(std::as_bytes(std::span(low)));
  const Tensor first = Tensor::zeros(device, {count}, first_dtype);
  const Tensor second = Tensor::zeros(device, {count}, second_dtype);
  const bool coded = first_dtype == DType::u8;
  const Tensor scales = Tensor::zeros(device, {2, row_blocks}, DType::f32);
  for (int step = 1; step <= 20; ++step) {
    const Tensor grad = flat(static_cast<std::uint64_t>(100 + step));
    run(AdamW{.master = split ? View{} : master.view(),
              .first_moment = first.view(),
              .second_moment = second.view(),
              .grad = grad.view(),
              .working = working.view(),
              .remainder = split ? remainder.view() : View{},
              .first_scale = coded ? scales.slice(0, {row_blocks}).view() : View{},
              .second_scale = coded ? scales.slice(row_blocks, {row_blocks}).view() : View{},
              .row_length = coded ? count : 0,
              .rounding_key = static_cast<std::uint64_t>(step),
              .rate = 1e-2,
              .weight_decay = 0.1,
              .correction1 = 1 - std::pow(0.9, step),
              .correction2 = 1 - std::pow(0.999, step)},
        device->stream());
  }
  Trained result{bytes_of(master), bytes_of(first), bytes_of(second), bytes_of(working)};
  if (split) {
    remainder.copy_bytes_to(std::as_writable_bytes(std::span(low)));
    working.copy_bytes_to(std::as_writable_bytes(std::span(high)));
    for (std::size_t i = 0; i < low.size(); ++i) {
      const float joined = SplitMaster::join(high[i], low[i]);
      std::memcpy(result.master.data() + i * sizeof joined, &joined, sizeof joined);
    }
  }
  return result;
}

}  // namespace

TEST_CASE("a split master weight is its fp32 value, exactly") {
  const auto joined = [](float value) {
    const SplitMaster split(value);
    return SplitMaster::join(split.high, split.low);
  };
  using Limits = std::numeric_limits<float>;
  for (const float value : {0.0f, -0.0f, 1.0f, -1.0f, Limits::max(), Limits::lowest(),
                            Limits::min(), Limits::denorm_min(), Limits::infinity(),
                            std::bit_cast<float>(0x3F808000u), std::bit_cast<float>(0xBF807FFFu)})
    CHECK(std::bit_cast<std::uint32_t>(joined(value)) == std::bit_cast<std::uint32_t>(value));
  // Every 16-bit tail of one exponent and of its neighbour.
  bool all = true;
  for (std::uint32_t bits = 0x3FFF0000u; bits < 0x40010000u; ++bits)
    all &= std::bit_cast<std::uint32_t>(joined(std::bit_cast<float>(bits))) == bits;
  CHECK(all);
}

TEST_CASE("AdamW on a split master weight is AdamW on a whole one, to the bit") {
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  INFO(name_of(kind));
  const DevicePtr device = open_device(kind);
  const auto [m, v] = GENERATE(table<DType, DType>({{DType::f32, DType::f32},
                                                    {DType::bf16, DType::f32},
                                                    {DType::bf16, DType::bf16},
                                                    {DType::u8, DType::u8}}));
  CAPTURE(name_of(m), name_of(v));
  const Trained whole = train(device, false, m, v), split = train(device, true, m, v);
  CHECK(split.master == whole.master);
  CHECK(split.working == whole.working);
  CHECK(split.first == whole.first);
  CHECK(split.second == whole.second);
}

}  // namespace sluice::test::split_master_test
