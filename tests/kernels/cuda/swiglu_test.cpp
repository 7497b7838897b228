#include "kernels/swiglu.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::swiglu_test {
namespace {

struct Sizes {
  std::int64_t rows, width;
};
constexpr Sizes all_sizes[] = {{1, 1}, {33, 3}, {5, 33}, {70, 64}, {3, 1001}, {2, 1536}, {1, 5000}};
constexpr Parity::Offsets all_offsets[] = {{0, 0}, {1, 1}, {0, 1}};

}  // namespace

TEST_CASE("cuda: SwiGLU in both directions", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const auto& [rows, width] : all_sizes)
      for (const auto offsets : all_offsets) {
        CAPTURE(name_of(dtype), rows, width, offsets.read, offsets.written);
        Parity parity(devices, offsets);
        const Values values = random_values(2 * rows * width, 1, 6);
        const auto in = parity.input("in", dtype, {rows, 2 * width}, values);
        const auto grad_out = parity.input("grad_out", dtype, {rows, width});
        const auto out = parity.output("out", dtype, {rows, width});
        const auto grad_in = parity.output("grad_in", dtype, {rows, 2 * width});
        const auto in_place = parity.state("in place", dtype, {rows, 2 * width}, values);
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(SwigluForward{.out = at[out], .in = at[in]}, stream);
          for (const auto& [to, from] : {std::pair{grad_in, in}, {in_place, in_place}})
            run(SwigluBackward{.grad_in = at[to], .grad_out = at[grad_out], .in = at[from]},
                stream);
        });
      }
}

}  // namespace sluice::test::swiglu_test
