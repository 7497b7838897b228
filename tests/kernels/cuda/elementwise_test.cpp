#include <cmath>

#include "kernels/copy_columns.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/head_order.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::elementwise_test {
namespace {

constexpr std::int64_t counts[] = {1, 3, 8, 33, 2050, 5003};

/// Random numbers with all that rounding and comparisons can get wrong among them.
Values with_special_values(std::int64_t count, std::uint64_t seed) {
  const double special[] = {0.0,
                            -0.0,
                            1.0 + 0x1p-8,
                            1.0 + 3 * 0x1p-8,
                            -1.0 - 0x1p-8,
                            65504.0,
                            65519.0,
                            65520.0,
                            1e-7,
                            -3e-8,
                            1e30,
                            INFINITY,
                            -INFINITY,
                            0x1p-24,
                            0x1p-25,
                            3e38,
                            3.4028e38,
                            1.0 + 0x1p-11,
                            1.0 + 3 * 0x1p-11,
                            NAN};
  Values values = random_values(count, seed, 4);
  std::size_t at = 0;
  for (const double value : special) {
    if (at < values.size()) values[at] = value;
    at += 7;
  }
  return values;
}

/// Far below zero GELU is what is left of 1 - 1 and has no digits: few numbers stay away from
/// there.
double reach_of(std::int64_t count) {
  return count < 100 ? 2 : 6;
}

/// Calls `body(dtype, count, offsets)` for all that elementwise kernels may meet.
template <class Body>
void each_case(Body&& body) {
  for (const DType dtype : cuda_dtypes) {
    for (const std::int64_t count : counts) {
      for (const auto offsets : all_offsets) {
        CAPTURE(name_of(dtype), count, offsets.read, offsets.written);
        body(dtype, count, offsets);
      }
    }
  }
}

}  // namespace

TEST_CASE("cuda: addition is the CPU's, bit for bit", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  each_case([&](DType dtype, std::int64_t count, Parity::Offsets offsets) {
    Parity parity(devices, offsets);
    const auto a = parity.input("a", dtype, {count}, with_special_values(count, 1));
    const auto b = parity.input("b", dtype, {count});
    const auto out = parity.output("out", dtype, {count}, 0.0);
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(Add{.out = at[out], .a = at[a], .b = at[b]}, stream);
    });
  });
}

TEST_CASE("cuda: addition in place", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  each_case([&](DType dtype, std::int64_t count, Parity::Offsets offsets) {
    for (const bool onto_a : {true, false}) {
      Parity parity(devices, offsets);
      const auto both = parity.state("out", dtype, {count}, random_values(count, 1), 0.0);
      const auto other = parity.input("other", dtype, {count});
      parity.compare([=](const Parity::Views& at, Stream stream) {
        run(Add{.out = at[both], .a = at[onto_a ? both : other], .b = at[onto_a ? other : both]},
            stream);
      });
    }
  });
}

TEST_CASE("cuda: a row is added to the rows of a strided matrix", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const auto& [rows, columns] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 257}, {1030, 20}}) {
      CAPTURE(name_of(dtype), rows, columns);
      const std::int64_t stride = columns + 3;
      Parity parity(devices, {1, 1});
      const Values before = random_values(rows * stride, 1), row_values = random_values(columns, 2);
      const auto matrix = parity.state("matrix", DType::f32, {rows, stride}, before);
      const auto row = parity.input("row", dtype, {columns}, row_values);
      parity.compare([=, height = rows, width = columns](const Parity::Views& at, Stream stream) {
        View strided(at[matrix].address, DType::f32, {height, width});
        strided.strides[0] = stride;
        run(AddRow{.matrix = strided, .row = at[row]}, stream);
      });
    }
}

TEST_CASE("cuda: casts round as the CPU's", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType to : cuda_dtypes) {
    each_case([&](DType from, std::int64_t count, Parity::Offsets offsets) {
      CAPTURE(name_of(to));
      for (const bool half_away : {false, true}) {
        if (half_away && !(from == DType::f32 && to == DType::bf16)) continue;
        Parity parity(devices, offsets);
        const auto in = parity.input("in", from, {count}, with_special_values(count, 3));
        const auto out = parity.output("out", to, {count}, 0.0);
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(Cast{.out = at[out], .in = at[in], .half_away = half_away}, stream);
        });
      }
    });
  }
}

TEST_CASE("cuda: filling", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  each_case([&](DType dtype, std::int64_t count, Parity::Offsets offsets) {
    for (const double value : {0.0, -1.5, 1.0 / 3}) {
      Parity parity(devices, offsets);
      const auto out = parity.output("out", dtype, {count}, 0.0);
      parity.compare([=](const Parity::Views& at, Stream stream) {
        run(Fill{.out = at[out], .value = value}, stream);
      });
    }
  });
}

TEST_CASE("cuda: scaling", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  each_case([&](DType dtype, std::int64_t count, Parity::Offsets offsets) {
    Parity parity(devices, offsets);
    const auto in = parity.input("in", dtype, {count});
    const auto out = parity.output("out", dtype, {count}, 0.0);
    const auto own = parity.state("own", dtype, {count}, random_values(count, 7), 0.0);
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(Scale{.out = at[out], .in = at[in], .factor = -1.75}, stream);
      run(Scale{.out = at[own], .in = at[own], .factor = 0.3}, stream);
    });
  });
}

TEST_CASE("cuda: GELU", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  const bool exact = GENERATE(false, true);
  each_case([&](DType dtype, std::int64_t count, Parity::Offsets offsets) {
    CAPTURE(exact);
    Parity forward(devices, offsets);
    const auto in = forward.input("in", dtype, {count}, reach_of(count));
    const auto out = forward.output("out", dtype, {count});
    forward.compare([=](const Parity::Views& at, Stream stream) {
      run(GeluForward{.out = at[out], .in = at[in], .exact = exact}, stream);
    });
    Parity backward(devices, offsets);
    const auto x = backward.input("in", dtype, {count}, reach_of(count));
    const auto grad_out = backward.input("grad_out", dtype, {count});
    const auto grad_in = backward.output("grad_in", dtype, {count});
    backward.compare([=](const Parity::Views& at, Stream stream) {
      run(
          GeluBackward{
              .grad_in = at[grad_in], .grad_out = at[grad_out], .in = at[x], .exact = exact},
          stream);
    });
  });
}

TEST_CASE("cuda: heads are sorted as on the CPU, bit for bit", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const auto& [rows, heads, width] :
         {std::array<std::int64_t, 3>{1, 1, 1}, {33, 3, 7}, {5, 4, 64}, {70, 2, 80}})
      for (const Parity::Offsets offsets : {Parity::Offsets{0, 0}, Parity::Offsets{1, 1}}) {
        CAPTURE(name_of(dtype), rows, heads, width, offsets.read);
        Parity parity(devices, offsets);
        const auto in = parity.input("in", dtype, {rows, 3 * heads * width});
        const auto sorted = parity.output("sorted", dtype, {rows, 3 * heads * width}, 0.0);
        const auto back = parity.output("back", dtype, {rows, 3 * heads * width}, 0.0);
        parity.compare([=, h = static_cast<int>(heads)](const Parity::Views& at, Stream stream) {
          run(HeadOrder{.out = at[sorted], .in = at[in], .heads = h}, stream);
          run(HeadOrder{.out = at[back], .in = at[sorted], .heads = h, .inverse = true}, stream);
        });
      }
}

TEST_CASE("cuda: columns are copied as on the CPU, bit for bit", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  struct Row {
    std::int64_t rows, out_columns, in_columns, out_first, in_first, columns;
  };
  for (const DType dtype : cuda_dtypes)
    for (const Row& row : {Row{1, 1, 1, 0, 0, 1},
                           {33, 9, 7, 5, 2, 4},
                           {70, 96, 64, 64, 32, 32},
                           {5, 64, 96, 0, 8, 40},
                           {5, 64, 96, 4, 8, 40},
                           {5, 64, 96, 8, 2, 40},
                           {5, 64, 96, 0, 8, 38},
                           {3, 8, 8, 2, 1, 0}})
      for (const Parity::Offsets offsets : {Parity::Offsets{0, 0}, Parity::Offsets{1, 1}}) {
        CAPTURE(name_of(dtype), row.rows, row.out_columns, row.in_columns, offsets.read);
        Parity parity(devices, offsets);
        const auto in = parity.input("in", dtype, {row.rows, row.in_columns});
        const auto out = parity.state("out", dtype, {row.rows, row.out_columns},
                                      random_values(row.rows * row.out_columns, 2));
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(CopyColumns{.out = at[out],
                          .in = at[in],
                          .out_first = row.out_first,
                          .in_first = row.in_first,
                          .columns = row.columns},
              stream);
        });
      }
}

TEST_CASE("cuda: the gradient of GELU in place", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  each_case([&](DType dtype, std::int64_t count, Parity::Offsets offsets) {
    Parity parity(devices, offsets);
    const auto in = parity.input("in", dtype, {count}, reach_of(count));
    const auto grad = parity.state("grad", dtype, {count}, random_values(count, 2));
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(GeluBackward{.grad_in = at[grad], .grad_out = at[grad], .in = at[in]}, stream);
    });
  });
}

TEST_CASE("cuda: GELU is 0 or the identity where it has settled", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    CAPTURE(name_of(dtype));
    const Values far{0.0, 12, -12, 40, -40, 1e4, -1e4, INFINITY, NAN};
    const auto count = static_cast<std::int64_t>(far.size());
    Parity parity(devices);
    const auto in = parity.input("in", dtype, {count}, far);
    const auto out = parity.output("out", dtype, {count});
    parity.compare([=](const Parity::Views& at, Stream stream) {
      run(GeluForward{.out = at[out], .in = at[in]}, stream);
    });
  }
}

TEST_CASE("cuda: ReLU is the CPU's, bit for bit", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  each_case([&](DType dtype, std::int64_t count, Parity::Offsets offsets) {
    Parity forward(devices, offsets);
    const auto in = forward.input("in", dtype, {count}, with_special_values(count, 4));
    const auto out = forward.output("out", dtype, {count}, 0.0);
    forward.compare([=](const Parity::Views& at, Stream stream) {
      run(ReluForward{.out = at[out], .in = at[in]}, stream);
    });
    Parity backward(devices, offsets);
    const auto y = backward.input("out", dtype, {count}, with_special_values(count, 5));
    const auto grad_out = backward.input("grad_out", dtype, {count});
    const auto grad_in = backward.output("grad_in", dtype, {count}, 0.0);
    backward.compare([=](const Parity::Views& at, Stream stream) {
      run(ReluBackward{.grad_in = at[grad_in], .grad_out = at[grad_out], .out = at[y]}, stream);
    });
  });
}

TEST_CASE("cuda: dropout drops the CPU's elements", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const std::int64_t samples : {1, 3}) {
    each_case([&](DType dtype, std::int64_t count, Parity::Offsets offsets) {
      CAPTURE(samples);
      const DropoutMask mask{.key = 0x1234567890ABCDEF, .probability = 0.3f, .first_sample = 5};
      Parity parity(devices, offsets);
      const auto in = parity.input("in", dtype, {samples, count});
      const auto out = parity.output("out", dtype, {samples, count}, 0.0);
      parity.compare([=](const Parity::Views& at, Stream stream) {
        run(Dropout{.out = at[out], .in = at[in], .mask = mask}, stream);
      });
    });
  }
}

TEST_CASE("cuda: dropout in place, of samples that have two dimensions", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    for (const float probability : {0.0f, 0.1f, 0.9f})
      for (const std::int64_t width : {33, 32}) {  // one by one, and 16 bytes at a time
        CAPTURE(name_of(dtype), probability, width);
        const DropoutMask mask{.key = 77, .probability = probability};
        Parity parity(devices);
        const auto both =
            parity.state("out", dtype, {3, 7, width}, random_values(3 * 7 * width, 9), 0.0);
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(Dropout{.out = at[both], .in = at[both], .mask = mask}, stream);
        });
      }
  }
}

TEST_CASE("cuda: dropout of a stretch of the batch", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  const DropoutMask mask{.key = 9, .probability = 0.3f, .first_sample = 7};
  const struct {
    std::int64_t first, count, per_sample;
  } cases[] = {{0, 17, 40},
               {17, 44, 40},
               {61, 59, 40},
               {16, 64, 40},
               {8, 24, 40},
               {24, 61, 40},
               {40, 40, 40},
               {20, 64, 44},
               {24, 64, 33},
               {3, 4000, 37},
               {8, 4096, 1000},
               // Only the first element keeps these from 16 bytes at a time.
               {4, 64, 40},
               {13, 24, 40},
               {39, 48, 16}};
  for (const DType dtype : cuda_dtypes) {
    for (const auto& [first, count, per_sample] : cases) {
      for (const auto offsets : all_offsets) {
        CAPTURE(name_of(dtype), first, count, per_sample, offsets.read, offsets.written);
        Parity parity(devices, offsets);
        const auto in = parity.input("in", dtype, {count});
        const auto out = parity.output("out", dtype, {count}, 0.0);
        parity.compare([=, from = first, size = per_sample](const Parity::Views& at,
                                                            Stream stream) {
          run(
              Dropout{
                  .out = at[out], .in = at[in], .mask = mask, .first = from, .per_sample = size},
              stream);
        });
      }
    }
  }
}

}  // namespace sluice::test::elementwise_test
