#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::cached_attention_test {
namespace {

struct Sizes {
  std::int64_t batch, start, fresh, capacity;
  int heads;
  std::int64_t head_width;
  int group = 1;  ///< query heads that share a head of k and v

  std::int64_t width() const { return heads * head_width; }
  AttentionHeads all_heads() const { return {heads, heads / group}; }
  std::int64_t row() const { return all_heads().in_row() * head_width; }
  std::int64_t cached() const { return all_heads().key_value * head_width; }
};
constexpr Sizes all_sizes[] = {
    {1, 0, 1, 1, 1, 1},        {2, 0, 7, 9, 3, 5},      {3, 6, 1, 7, 2, 16},
    {1, 31, 3, 64, 2, 32},     {2, 33, 5, 40, 1, 33},   {1, 63, 2, 65, 3, 64},
    {2, 127, 1, 200, 2, 64},   {1, 199, 2, 203, 1, 80}, {1, 64, 1, 70, 2, 96},
    {1, 1000, 1, 1024, 1, 64}, {1, 0, 33, 33, 1, 128},  {2, 20, 9, 60, 1, 100},
    {2, 33, 3, 40, 6, 64, 3},  {1, 7, 1, 9, 4, 5, 4},   {1, 40, 2, 50, 4, 128, 2}};
constexpr Sizes odd_sizes[] = {{2, 3, 7, 11, 3, 5}, {1, 33, 2, 40, 2, 64}, {1, 65, 1, 70, 1, 128}};

/// A cache that is full up to `start`. What lies behind must not be looked at: NaN.
Values cache_of(const Sizes& s, std::uint64_t seed) {
  Values values(static_cast<std::size_t>(s.batch * s.capacity * s.cached()), NAN);
  const Values filled = random_values(s.batch * s.start * s.cached(), seed, 1.5);
  for (std::int64_t b = 0; b < s.batch; ++b)
    std::copy_n(filled.begin() + b * s.start * s.cached(), s.start * s.cached(),
                values.begin() + b * s.capacity * s.cached());
  return values;
}

void compare(const CudaDevices& devices, DType dtype, const Sizes& s, Parity::Offsets offsets) {
  CAPTURE(devices.capability(), name_of(dtype), s.batch, s.start, s.fresh, s.capacity, s.heads,
          s.head_width, offsets.read, offsets.written);
  Parity parity(devices, offsets);
  const auto qkv = parity.input("qkv", dtype, {s.batch, s.fresh, s.row()}, 1.5);
  const auto keys =
      parity.state("key_cache", dtype, {s.batch, s.capacity, s.cached()}, cache_of(s, 21), 0.0);
  const auto values =
      parity.state("value_cache", dtype, {s.batch, s.capacity, s.cached()}, cache_of(s, 22), 0.0);
  const auto out = parity.output("out", dtype, {s.batch, s.fresh, s.width()});
  parity.compare([=](const Parity::Views& at, Stream stream) {
    run(CachedAttention{.out = at[out],
                        .key_cache = at[keys],
                        .value_cache = at[values],
                        .qkv = at[qkv],
                        .start = s.start,
                        .heads = s.all_heads()},
        stream);
  });
}

}  // namespace

TEST_CASE("cuda: attention over a cache", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : {DType::f32, DType::f16})
    for (const auto& s : all_sizes)
      compare(devices, dtype, s, {0, 0});
}

TEST_CASE("cuda: attention over a cache in bf16", "[cuda]") {
  const CudaDevices devices(80);
  if (!devices || devices.capability() < 80) return;
  for (const auto& s : all_sizes)
    compare(devices, DType::bf16, s, {0, 0});
}

TEST_CASE("cuda: attention over a cache at odd addresses", "[cuda]") {
  const CudaDevices devices(75);
  if (!devices) return;
  for (const DType dtype : {DType::f32, DType::f16})
    for (const auto& s : odd_sizes)
      for (const auto offsets : {Parity::Offsets{1, 1}, Parity::Offsets{0, 1}})
        compare(devices, dtype, s, offsets);
}

TEST_CASE("cuda: attention over a cache, position by position", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // The caches that one call leaves are what the next one reads.
  const Sizes s{2, 0, 1, 12, 3, 16};
  for (const DType dtype : cuda_dtypes) {
    CAPTURE(name_of(dtype));
    Parity parity(devices);
    const auto qkv = parity.input("qkv", dtype, {s.capacity, s.batch, 1, s.row()}, 1.5);
    const auto keys = parity.output("key_cache", dtype, {s.batch, s.capacity, s.cached()}, 0.0);
    const auto values = parity.output("value_cache", dtype, {s.batch, s.capacity, s.cached()}, 0.0);
    const auto out = parity.output("out", dtype, {s.capacity, s.batch, 1, s.width()});
    parity.compare([=](const Parity::Views& at, Stream stream) {
      const auto position = [&](const View& all, std::int64_t i) {
        const std::int64_t width = all.dim(-1);
        const std::int64_t bytes =
            i * s.batch * width * static_cast<std::int64_t>(size_of(all.dtype));
        return View(all.address + bytes, all.dtype, {s.batch, 1, width});
      };
      for (std::int64_t i = 0; i < s.capacity; ++i)
        run(CachedAttention{.out = position(at[out], i),
                            .key_cache = at[keys],
                            .value_cache = at[values],
                            .qkv = position(at[qkv], i),
                            .start = i,
                            .heads = s.all_heads()},
            stream);
    });
  }
}

}  // namespace sluice::test::cached_attention_test
