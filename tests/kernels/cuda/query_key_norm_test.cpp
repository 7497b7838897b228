#include "kernels/query_key_norm.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::query_key_norm_test {
namespace {

struct Sizes {
  std::int64_t batch, length;
  AttentionHeads heads;
  std::int64_t width;
};
// The last has more rows than one block takes, and a head as wide as can be.
const Sizes all_sizes[] = {{1, 1, 1, 2},
                           {2, 5, {6, 2}, 12},
                           {1, 33, {9, 3}, 64},
                           {2, 3, {4, 4}, 128},
                           {3, 11, {2, 1}, 256}};

}  // namespace

TEST_CASE("cuda: norms of q and k in both directions", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const Sizes& s : all_sizes)
      for (const Parity::Offsets offsets : {Parity::Offsets{0, 0}, Parity::Offsets{1, 1}}) {
        CAPTURE(name_of(dtype), s.heads.query, s.heads.key_value, s.width, offsets.read);
        Parity parity(devices, offsets);
        const std::int64_t columns = s.heads.in_row() * s.width;
        const auto in = parity.input("in", dtype, {s.batch, s.length, columns},
                                     random_values(s.batch * s.length * columns, 1, 2));
        const auto grad_out = parity.input("grad_out", dtype, {s.batch, s.length, columns});
        const auto query = parity.input("query", dtype, {s.width}, random_values(s.width, 3));
        const auto key = parity.input("key", dtype, {s.width}, random_values(s.width, 4));
        const auto out = parity.output("out", dtype, {s.batch, s.length, columns});
        const auto grad_in = parity.output("grad_in", dtype, {s.batch, s.length, columns});
        const auto grad_query = parity.output("grad_query", DType::f32, {s.width});
        const auto grad_key =
            parity.state("grad_key", DType::f32, {s.width}, random_values(s.width, 5));
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(QueryKeyNormForward{.out = at[out],
                                  .in = at[in],
                                  .query_weight = at[query],
                                  .key_weight = at[key],
                                  .heads = s.heads},
              stream);
          run(QueryKeyNormBackward{.grad_in = at[grad_in],
                                   .grad_query_weight = at[grad_query],
                                   .grad_key_weight = at[grad_key],
                                   .grad_out = at[grad_out],
                                   .in = at[in],
                                   .query_weight = at[query],
                                   .key_weight = at[key],
                                   .heads = s.heads,
                                   .accumulate_key = true},
              stream);
        });
      }
}

}  // namespace sluice::test::query_key_norm_test
