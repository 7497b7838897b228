#include <cmath>
#include <optional>

#include "kernels/adafactor.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::adafactor_test {
namespace {

struct Extent {
  std::int64_t rows, columns;
};
/// Extents on and off the blocks of 128 columns and 32 rows, and with two sums of row moments.
constexpr Extent extents[] = {{1, 1},   {1, 300},  {70, 1},   {2, 128},  {33, 8},
                              {31, 57}, {64, 256}, {70, 260}, {300, 131}};

enum class Weights : std::uint8_t { f32, bf16, f16, split };

struct Update {
  Extent extent{};
  bool vector = false;
  Weights weights = Weights::f32;
  DType gradient = DType::f32;
  std::optional<double> scale{};
  bool scale_by_weights = true;
  Parity::Offsets offsets{};
};

Values moments(std::int64_t count, std::uint64_t seed) {
  Values values = random_values(count, seed, 0.05);
  for (auto& value : values)
    value = 0.1 + std::abs(value);
  return values;
}

void compare(const CudaDevices& devices, const Update& u) {
  CAPTURE(u.extent.rows, u.extent.columns, u.vector, static_cast<int>(u.weights),
          name_of(u.gradient), u.scale.value_or(1), u.scale_by_weights, u.offsets.read,
          u.offsets.written);
  const auto [rows, columns] = u.extent;
  const std::int64_t count = rows * columns;
  // A scale that is not finite must not change a single bit.
  const bool kept = u.scale && !std::isfinite(*u.scale);
  const std::optional<double> bound = kept ? std::optional(0.0) : std::nullopt;
  Parity parity(devices, u.offsets);
  const auto state = [&](const char* name, DType dtype, std::int64_t size, const Values& values) {
    return parity.state(name, dtype, {size}, values, bound);
  };
  const bool split = u.weights == Weights::split;
  std::optional<Parity::Id> master, working, remainder, row, scale;
  if (split)
    // Pairs as i32. Where the last bit of a master differs, all bits of a remainder may.
    remainder = parity.state("remainder", DType::i32, {(count + 1) / 2},
                             random_values((count + 1) / 2, 6, 0x7FFF0000), kept ? 0.0 : 0.1);
  else
    master = state("master", DType::f32, count, random_values(count, 1));
  if (u.weights != Weights::f32)
    working = state("working", u.weights == Weights::f16 ? DType::f16 : DType::bf16, count,
                    random_values(count, 3));
  if (!u.vector) row = state("row_moment", DType::f32, rows, moments(rows, 4));
  const auto column = state("column_moment", DType::f32, columns, moments(columns, 5));
  const auto grad = parity.input("grad", u.gradient, {count}, random_values(count, 2));
  if (u.scale) scale = parity.input("gradient_scale", DType::f32, {1}, Values{*u.scale});
  // Poisoned, and cut in the same way for all devices.
  const AdafactorBlocks blocks{.rows = rows, .columns = columns};
  const auto scratch = parity.output("scratch", DType::f64, {blocks.size()}, 1e-5);
  parity.compare([=](const Parity::Views& at, Stream stream) {
    const auto view = [&](const std::optional<Parity::Id>& id) { return id ? at[*id] : View{}; };
    const View low = split ? View{at[*remainder].address, DType::i16, {count}} : View{};
    for (int step = 1; step <= 3; ++step)
      run(Adafactor{.master = view(master),
                    .working = view(working),
                    .remainder = low,
                    .row_moment = view(row),
                    .column_moment = at[column],
                    .grad = at[grad],
                    .scratch = at[scratch],
                    .gradient_scale = view(scale),
                    .rate = 1e-2,
                    .beta2 = 1 - std::pow(step, -0.8),
                    .weight_decay = 0.1,
                    .scale_by_weights = u.scale_by_weights},
          stream);
  });
}

}  // namespace

TEST_CASE("cuda: Adafactor", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (std::int64_t place = 0; const Extent extent : extents) {
    for (const Weights weights : {Weights::f32, Weights::bf16, Weights::f16, Weights::split}) {
      if (!in_form(2, {static_cast<std::int64_t>(weights), place++ / 4})) continue;
      for (const std::int64_t offset : {0, 1}) {
        Update u{.extent = extent, .weights = weights, .offsets = {offset, offset}};
        if (offset == 1 && extent.columns % 4 != 0) continue;
        compare(devices, u);
        if (offset == 1) continue;
        u.scale = 0.37;
        u.scale_by_weights = false;
        u.gradient =
            weights == Weights::bf16 || weights == Weights::split ? DType::bf16 : DType::f32;
        u.vector = extent.rows == 1;
        compare(devices, u);
      }
    }
  }
}

TEST_CASE("cuda: Adafactor of a matrix whose blocks have more rows", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  compare(devices, {.extent = {by_form(4300, 8300), 3}});
}

TEST_CASE("cuda: Adafactor changes nothing where the scale is not finite", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const Weights weights : {Weights::f32, Weights::bf16, Weights::f16, Weights::split})
    for (const Extent extent : {Extent{33, 8}, Extent{1, 300}})
      for (const double scale : {double{NAN}, double{INFINITY}, -double{INFINITY}})
        compare(devices,
                {.extent = extent, .vector = extent.rows == 1, .weights = weights, .scale = scale});
}

}  // namespace sluice::test::adafactor_test
