#include "kernels/gemm.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::gemm_test {

#ifdef SLUICE_TEST_SIMT
constexpr double bound = 6e-4;  // a second rounding would make it 1.6e-3
#else
// cuBLASLt rounds some products to bf16 before it adds them: 2.7e-3 on an H200.
constexpr double bound = 4e-3;
#endif

TEST_CASE("cuda: a product is added to bf16 sums", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  struct Size {
    std::int64_t m, n, k;
  };
  for (const Size& s : {Size{1, 1, 1}, {16, 24, 64}, {33, 17, 100}, {64, 128, 2050}}) {
    for (const bool transposed : {false, true}) {
      CAPTURE(s.m, s.n, s.k, transposed);
      Parity parity(devices);
      // Both as gradients of weights come: a transposed, or b.
      const auto a = parity.input(
          "a", DType::bf16,
          transposed ? std::vector<std::int64_t>{s.k, s.m} : std::vector<std::int64_t>{s.m, s.k});
      const auto b = parity.input(
          "b", DType::bf16,
          transposed ? std::vector<std::int64_t>{s.k, s.n} : std::vector<std::int64_t>{s.n, s.k});
      // Sums in f32 in another order move a rounding now and then; a second rounding moves every
      // other one.
      const auto out = parity.state("out", DType::bf16, {s.m, s.n}, random_values(s.m * s.n, 9, 8),
                                    s.m == 1 ? 4e-3 : bound);
      parity.compare([=](const Parity::Views& at, Stream stream) {
        run(Gemm{.out = at[out],
                 .a = at[a],
                 .b = at[b],
                 .transpose_a = transposed,
                 .transpose_b = !transposed,
                 .accumulate = true},
            stream);
      });
    }
  }
}

}  // namespace sluice::test::gemm_test
