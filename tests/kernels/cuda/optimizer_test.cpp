#include <cmath>
#include <optional>

#include "kernels/adamw.h"
#include "kernels/sgd.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::optimizer_test {
namespace {

constexpr std::int64_t counts[] = {1, 3, 8, 33, 2050, 70001};
constexpr int steps = 3;

/// The operands of an update, apart from the optimizer state.
struct Update {
  std::int64_t count = 1;
  std::optional<DType> working{};
  std::optional<double> scale{};
  Parity::Offsets offsets{};
};

/// Calls `body(update)` for all that optimizers may meet. Everything is misaligned together: slices
/// of flat buffers begin at the same element in each.
template <class Body>
void each_update(Body&& body) {
  for (const std::int64_t count : counts) {
    for (const std::optional<DType> working :
         {std::optional<DType>{}, std::optional(DType::f32), std::optional(DType::bf16),
          std::optional(DType::f16)}) {
      for (const std::int64_t offset : {0, 1}) {
        for (const std::optional<double> scale :
             {std::optional<double>{}, std::optional(0.37), std::optional<double>(NAN),
              std::optional<double>(INFINITY)}) {
          if (count > 5000 && offset == 1) continue;
          CAPTURE(count, working.has_value(), name_of(working.value_or(DType::i32)), offset,
                  scale.has_value(), scale.value_or(1));
          body(Update{count, working, scale, {offset, offset}});
        }
      }
    }
  }
}

Values squares(std::int64_t count, std::uint64_t seed) {
  Values values = random_values(count, seed, 0.1);
  for (auto& value : values)
    value *= value;
  return values;
}

/// Both devices give the same bits, since either may update a part of a run's state.
constexpr double none = 0;

/// The arguments that all updates have.
/// Elements [first, first + count) of a View in one dimension.
View part_of(const View& whole, std::int64_t first, std::int64_t count) {
  return {
      whole.address + static_cast<std::size_t>(first) * size_of(whole.dtype), whole.dtype, {count}};
}

struct Common {
  Parity::Id master, grad, working{}, scale{};

  Common(Parity& parity, const Update& u)
      : master(parity.state("master", DType::f32, {u.count}, random_values(u.count, 1), none)),
        grad(parity.input("grad", DType::f32, {u.count})) {
    // A working weight is written whole, but where nothing changes it keeps what it was.
    const bool kept = u.scale && !std::isfinite(*u.scale);
    if (u.working)
      working = parity.state("working", *u.working, {u.count},
                             kept ? random_values(u.count, 3) : Values{}, none);
    if (u.scale) scale = parity.input("gradient_scale", DType::f32, {1}, Values{*u.scale});
  }
  View working_of(const Parity::Views& at, const Update& u) const {
    return u.working ? at[working] : View{};
  }
  View scale_of(const Parity::Views& at, const Update& u) const {
    return u.scale ? at[scale] : View{};
  }
};

}  // namespace

TEST_CASE("cuda: AdamW", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  each_update([&](const Update& u) {
    Parity parity(devices, u.offsets);
    const Common common(parity, u);
    const auto first =
        parity.state("first_moment", DType::f32, {u.count}, random_values(u.count, 4, 0.1), none);
    const auto second =
        parity.state("second_moment", DType::f32, {u.count}, squares(u.count, 5), none);
    parity.compare([=](const Parity::Views& at, Stream stream) {
      for (int step = 1; step <= steps; ++step)
        run(AdamW{.master = at[common.master],
                  .first_moment = at[first],
                  .second_moment = at[second],
                  .grad = at[common.grad],
                  .working = common.working_of(at, u),
                  .gradient_scale = common.scale_of(at, u),
                  .rate = 1e-2,
                  .beta2 = 0.95,
                  .weight_decay = 0.1,
                  .correction1 = 1 - std::pow(0.9, step),
                  .correction2 = 1 - std::pow(0.95, step)},
            stream);
    });
  });
}

TEST_CASE("cuda: many runs of AdamW at once", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // More than one launch has, and every second one with other moments. Only some begin and end
  // where four elements at a time can be accessed.
  constexpr std::int64_t lengths[] = {4, 1024, 1, 1025, 7, 4096, 256};
  constexpr std::size_t runs = 130;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < runs; ++i)
    count += lengths[i % std::size(lengths)];
  Parity parity(devices);
  const auto master = parity.state("master", DType::f32, {count}, random_values(count, 1), none);
  const auto working = parity.output("working", DType::bf16, {count}, none);
  const auto grad = parity.input("grad", DType::f32, {count});
  std::vector<Parity::Id> first, second;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    first.push_back(
        parity.state("first_moment", dtype, {count}, random_values(count, 4, 0.1), none));
    second.push_back(parity.state("second_moment", dtype, {count}, squares(count, 5), none));
  }
  parity.compare([=](const Parity::Views& at, Stream stream) {
    std::vector<AdamW> updates;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < runs; ++i) {
      const std::int64_t length = lengths[i % std::size(lengths)];
      const auto part = [&](Parity::Id id) { return part_of(at[id], begin, length); };
      updates.push_back({.master = part(master),
                         .first_moment = part(first[i % 2]),
                         .second_moment = part(second[i % 2]),
                         .grad = part(grad),
                         .working = part(working),
                         .rounding_key = 99,
                         .first_element = begin + 5,
                         .rate = 1e-2,
                         .weight_decay = i % 3 == 0 ? 0.1 : 0.0});
      begin += length;
    }
    run(AdamWBatch{updates}, stream);
    run(AdamWBatch{}, stream);
  });
}

TEST_CASE("cuda: the first step of AdamW from zero moments", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // Some gradients are 0: only epsilon keeps the quotient finite.
  Values gradient = random_values(1000, 2);
  for (std::size_t i = 0; i < gradient.size(); i += 7)
    gradient[i] = 0;
  Parity parity(devices);
  const auto master = parity.state("master", DType::f32, {1000}, random_values(1000, 1), none);
  const auto first = parity.state("first_moment", DType::f32, {1000}, Values(1000, 0.0), none);
  const auto second = parity.state("second_moment", DType::f32, {1000}, Values(1000, 0.0), none);
  const auto grad = parity.input("grad", DType::f32, {1000}, gradient);
  parity.compare([=](const Parity::Views& at, Stream stream) {
    run(AdamW{.master = at[master],
              .first_moment = at[first],
              .second_moment = at[second],
              .grad = at[grad],
              .rate = 1e-2,
              .correction1 = 0.1,
              .correction2 = 1e-3},
        stream);
  });
}

TEST_CASE("cuda: SGD", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  each_update([&](const Update& u) {
    Parity parity(devices, u.offsets);
    const Common common(parity, u);
    const auto velocity =
        parity.state("velocity", DType::f32, {u.count}, random_values(u.count, 4, 0.1), none);
    parity.compare([=](const Parity::Views& at, Stream stream) {
      for (int step = 1; step <= steps; ++step)
        run(Sgd{.master = at[common.master],
                .velocity = at[velocity],
                .grad = at[common.grad],
                .working = common.working_of(at, u),
                .gradient_scale = common.scale_of(at, u),
                .rate = 0.1,
                .momentum = 0.9,
                .weight_decay = 0.01},
            stream);
    });
  });
}

TEST_CASE("cuda: working weights in bf16 round ties away from zero", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  // A rate of 0 keeps the master's bits, so that the working weight is nothing but its rounding.
  const Values ties{1 + 0x1p-8,           1 + 3 * 0x1p-8, -1 - 0x1p-8, -1 - 3 * 0x1p-8,
                    1 + 0x1p-8 - 0x1p-20, 0x1p-130,       -0.0,        3.4e38};
  const auto count = static_cast<std::int64_t>(ties.size());
  for (const DType working : {DType::bf16, DType::f16, DType::f32}) {
    CAPTURE(name_of(working));
    Parity parity(devices);
    const auto master = parity.state("master", DType::f32, {count}, ties, 0.0);
    const auto velocity = parity.state("velocity", DType::f32, {count}, Values(ties.size(), 0.0));
    const auto grad = parity.input("grad", DType::f32, {count});
    const auto weight = parity.output("working", working, {count}, 0.0);
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(Sgd{.master = at[master],
              .velocity = at[velocity],
              .grad = at[grad],
              .working = at[weight]},
          stream);
    });
  }
}

}  // namespace sluice::test::optimizer_test
