#include "kernels/muon.h"

#include <cmath>
#include <optional>

#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::muon_cuda_test {
namespace {

constexpr std::int64_t counts[] = {1, 255, 1024, 1025, 3000};
constexpr double scales[] = {0.37, double{NAN}, double{INFINITY}};

/// A result that must keep its bits where the gradient scale is not finite.
std::optional<double> bound(double scale) {
  return std::isfinite(scale) ? std::nullopt : std::optional(0.0);
}

}  // namespace

TEST_CASE("cuda: Muon's momentum", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const std::int64_t count : counts)
    for (const DType grad_type : {DType::f32, DType::bf16})
      for (const DType direction_type : {DType::f32, DType::bf16})
        for (const double by : scales) {
          CAPTURE(count, name_of(grad_type), name_of(direction_type), by);
          Parity parity(devices);
          const auto moment =
              parity.state("first_moment", DType::f32, {count}, random_values(count, 1), bound(by));
          const auto direction = parity.state("direction", direction_type, {count},
                                              random_values(count, 2), bound(by));
          const auto grad = parity.input("grad", grad_type, {count});
          const auto scale = parity.input("gradient_scale", DType::f32, {1}, Values{by});
          parity.compare([=](const Parity::Views& at, Stream stream) {
            run(MuonMomentum{.direction = at[direction],
                             .first_moment = at[moment],
                             .grad = at[grad],
                             .gradient_scale = at[scale]},
                stream);
          });
        }
}

TEST_CASE("cuda: division by a norm", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const std::int64_t count : counts)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::int64_t partials : {1, 7, 300}) {
        CAPTURE(count, name_of(dtype), partials);
        Parity parity(devices);
        const auto matrix = parity.state("matrix", dtype, {count}, random_values(count, 3));
        const auto partial = parity.input("partial", DType::f64, {partials},
                                          Values(static_cast<std::size_t>(partials), 0.3));
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(DivideByNorm{.matrix = at[matrix], .partial = at[partial]}, stream);
        });
      }
}

TEST_CASE("cuda: division by a norm below epsilon, or of zero", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const double size : {0.0, 1e-9, 2.0})
      for (const double epsilon : {1e-7, 10.0}) {
        CAPTURE(name_of(dtype), size, epsilon);
        constexpr std::int64_t count = 1025;
        Parity parity(devices);
        const auto matrix = parity.state("matrix", dtype, {count}, random_values(count, 3, size));
        const auto partial =
            parity.input("partial", DType::f64, {3}, Values{size * size, 0, size * size / 2});
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(DivideByNorm{.matrix = at[matrix], .partial = at[partial], .epsilon = epsilon},
              stream);
        });
      }
}

TEST_CASE("cuda: symmetric sums", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const std::int64_t n : {1, 31, 32, 33, 70})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool adds : {false, true}) {
        CAPTURE(n, name_of(dtype), adds);
        Parity parity(devices);
        const auto out = parity.state("out", dtype, {n, n}, random_values(n * n, 4));
        const auto added = parity.input("added", dtype, {n, n});
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(SymmetricSum{.out = at[out],
                           .added = adds ? at[added] : View{},
                           .factor = adds ? 2.0 : 1.0,
                           .added_factor = -4.75,
                           .identity = adds ? 3.5 : 0.0},
              stream);
        });
      }
}

TEST_CASE("cuda: Muon's update", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  enum class Weights : std::uint8_t { f32, bf16, f16, split };
  for (const std::int64_t count : counts)
    for (const Weights weights : {Weights::f32, Weights::bf16, Weights::f16, Weights::split})
      for (const DType direction_type : {DType::f32, DType::bf16})
        for (const double by : scales) {
          CAPTURE(count, static_cast<int>(weights), name_of(direction_type), by);
          const bool split = weights == Weights::split;
          Parity parity(devices);
          std::optional<Parity::Id> master, working, remainder;
          if (split)
            // Pairs as i32. Where the last bit of a master differs, all bits of a remainder may.
            remainder = parity.state("remainder", DType::i32, {(count + 1) / 2},
                                     random_values((count + 1) / 2, 6, 0x7FFF0000),
                                     std::isfinite(by) ? 0.1 : 0.0);
          else
            master =
                parity.state("master", DType::f32, {count}, random_values(count, 5), bound(by));
          if (weights != Weights::f32)
            working = parity.state("working", weights == Weights::f16 ? DType::f16 : DType::bf16,
                                   {count}, random_values(count, 7), bound(by));
          const auto direction = parity.input("direction", direction_type, {count});
          const auto scale = parity.input("gradient_scale", DType::f32, {1}, Values{by});
          parity.compare([=](const Parity::Views& at, Stream stream) {
            const auto view = [&](const std::optional<Parity::Id>& id) {
              return id ? at[*id] : View{};
            };
            run(MuonUpdate{.master = view(master),
                           .working = view(working),
                           .remainder =
                               split ? View{at[*remainder].address, DType::i16, {count}} : View{},
                           .direction = at[direction],
                           .gradient_scale = at[scale],
                           .rate = 0.1,
                           .step = 0.03,
                           .weight_decay = 0.5},
                stream);
          });
        }
}

}  // namespace sluice::test::muon_cuda_test
