#include <cmath>

#include "kernels/quantized.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::quantized_test {
namespace {

struct Sizes {
  std::int64_t rows, columns;
};
constexpr Sizes all_sizes[] = {{1, 1}, {33, 3}, {5, 33}, {70, 64}, {3, 1001}, {17, 2048}};

Values codes(std::int64_t count) {
  Values values = random_values(count, 4, 127.49);
  for (double& value : values)
    value = std::round(value);
  return values;
}

}  // namespace

TEST_CASE("cuda: matrices of 8-bit integers", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const auto& [rows, columns] : all_sizes)
      for (const auto offsets : all_offsets) {
        CAPTURE(name_of(dtype), rows, columns, offsets.read, offsets.written);
        Parity parity(devices, offsets);
        const auto in = parity.input("codes", DType::i8, {rows, columns}, codes(rows * columns));
        const auto scales =
            parity.input("scales", DType::f16, {rows, quantized_blocks(columns)}, 0.01);
        const auto out = parity.output("out", dtype, {rows, columns}, 0.0);  // in each bit
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(Dequantize{.out = at[out], .codes = at[in], .scales = at[scales]}, stream);
        });
      }
}

}  // namespace sluice::test::quantized_test
