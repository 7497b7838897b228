#include "kernels/rotary.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::rotary_test {
namespace {

struct Sizes {
  std::int64_t batch, length;
  int heads, unchanged;  ///< heads that are rotated, and behind them
  int head_width, width;
};
constexpr Sizes all_sizes[] = {{1, 1, 1, 0, 2, 2},
                               {2, 5, 3, 1, 20, 6},
                               {1, 7, 5, 3, 64, 64},
                               {2, 3, 2, 1, 80, 32},
                               {1, 3, 9, 1, 64, 16},
                               {1, 2, 2, 1, 256, 256},
                               // The second head begins where no 16 bytes do.
                               {1, 3, 3, 1, 17, 16},
                               {2, 2, 3, 0, 33, 32},
                               {1, 3, 2, 1, 20, 16}};

}  // namespace

TEST_CASE("cuda: rotary positions, and the way back", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved})
      for (const auto& s : all_sizes)
        for (const bool inverse : {false, true})
          for (const Parity::Offsets offsets : {Parity::Offsets{0, 0}, Parity::Offsets{1, 1}}) {
            CAPTURE(name_of(dtype), s.heads, s.head_width, s.width, inverse, offsets.written);
            RotaryAngles angles{.width = s.width, .pairs = pairs};
            std::uint64_t turns = 0x28BE60DB9391054A;  // one radian
            for (int i = 0; i < s.width / 2; ++i, turns -= turns / 4)
              angles.turns[static_cast<std::size_t>(i)] = turns;
            Parity parity(devices, offsets);
            const std::int64_t columns = std::int64_t{s.heads + s.unchanged} * s.head_width;
            const auto rows = parity.state("rows", dtype, {s.batch, s.length, columns},
                                           random_values(s.batch * s.length * columns, 1));
            parity.compare([=](const Parity::Views& at, Stream stream) {
              run(Rotary{.rows = at[rows],
                         .heads = s.heads,
                         .head_width = s.head_width,
                         .angles = angles,
                         .first_position = 1000003,
                         .inverse = inverse},
                  stream);
            });
          }
}

}  // namespace sluice::test::rotary_test
