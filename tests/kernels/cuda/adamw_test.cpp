#include <cmath>

#include "kernels/base/half.h"
#include "tests/kernels/adamw_state.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::adamw_test {
namespace {

struct Size {
  std::int64_t rows, columns;
  std::int64_t blocks() const { return rows * ((columns + AdamW::block - 1) / AdamW::block); }
};

/// A part of a run's updates may be the CPU's, so both give the same bits.
constexpr double none = 0;

struct Arguments {
  Layout layout;
  Size size;
  Parity::Id grad{}, scale{}, master{}, working{}, remainder{}, first{}, second{}, first_scale{},
      second_scale{};

  Arguments(Parity& parity, const Layout& of, const Size& s) : layout(of), size(s) {
    const std::int64_t n = s.rows * s.columns;
    grad = parity.input("grad", layout.grad, {n}, 0.5);
    scale = parity.input("gradient_scale", DType::f32, {1}, Values{0.37});
    add_weights(parity, random_values(n, 1));
    if (layout.coded()) {
      const auto codes = [n](std::uint64_t seed) {
        const auto bytes = random_codes(n, seed);
        return Values(bytes.begin(), bytes.end());
      };
      first = parity.state("first_moment", DType::u8, {n}, codes(2), none);
      second = parity.state("second_moment", DType::u8, {n}, codes(3), none);
      const Values scales(static_cast<std::size_t>(s.blocks()), 0.125);
      first_scale = parity.state("first_scale", DType::f32, {s.blocks()}, scales, none);
      second_scale = parity.state("second_scale", DType::f32, {s.blocks()}, scales, none);
    } else {
      Values squares = random_values(n, 3, 0.1);
      for (auto& value : squares)
        value *= value;
      first = parity.state("first_moment", layout.first, {n}, random_values(n, 2, 0.1), none);
      second = parity.state("second_moment", layout.second, {n}, squares, none);
    }
  }

  void add_weights(Parity& parity, const Values& start) {
    const std::int64_t n = size.rows * size.columns;
    if (layout.weights == Weights::split) {
      Values high, low;
      for (const double value : start) {
        const SplitMaster halves(static_cast<float>(value));
        high.push_back(static_cast<float>(halves.high));
        low.push_back(halves.low);
      }
      working = parity.state("working", DType::bf16, {n}, high, none);
      remainder = parity.state("remainder", DType::i16, {n}, low, none);
      return;
    }
    master = parity.state("master", DType::f32, {n}, start, none);
    if (layout.weights != Weights::master)
      working = parity.output("working", layout.weights == Weights::bf16 ? DType::bf16 : DType::f16,
                              {n}, none);
  }

  AdamW op(const Parity::Views& at, int step) const {
    const bool split = layout.weights == Weights::split, coded = layout.coded();
    return {.master = split ? View{} : at[master],
            .first_moment = at[first],
            .second_moment = at[second],
            .grad = at[grad],
            .working = layout.weights == Weights::master ? View{} : at[working],
            .remainder = split ? at[remainder] : View{},
            .gradient_scale = at[scale],
            .first_scale = coded ? at[first_scale] : View{},
            .second_scale = coded ? at[second_scale] : View{},
            .row_length = coded ? size.columns : 0,
            .rounding_key = static_cast<std::uint64_t>(step),
            .first_element = 12345,
            .rate = 1e-2,
            .beta2 = 0.95,
            .weight_decay = 0.1,
            .correction1 = 1 - std::pow(0.9, step),
            .correction2 = 1 - std::pow(0.95, step)};
  }
};

}  // namespace

TEST_CASE("cuda: AdamW of every layout of state", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  constexpr Parity::Offsets offsets_of_some[] = {{0, 0}, {1, 1}, {1, 0}};
  for (const Layout& layout : adamw_layouts()) {
    for (const Size& size : {Size{5, 1}, {3, 255}, {3, 256}, {2, 257}, {2, 1600}}) {
      for (const auto offsets : offsets_of_some) {
        CAPTURE(layout.name(), size.rows, size.columns, offsets.read, offsets.written);
        Parity parity(devices, offsets);
        const Arguments arguments(parity, layout, size);
        parity.compare([=](const Parity::Views& at, Stream stream) {
          for (int step = 1; step <= 2; ++step)
            run(arguments.op(at, step), stream);
        });
      }
    }
  }
}

TEST_CASE("cuda: AdamW of more blocks than run at a time", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const Size& size : {Size{700, 1}, {3, 256 * 100 + 7}}) {
    CAPTURE(size.rows, size.columns);
    Parity parity(devices);
    const Arguments arguments(parity, {DType::u8, DType::u8, Weights::split, DType::bf16}, size);
    parity.compare(
        [=](const Parity::Views& at, Stream stream) { run(arguments.op(at, 1), stream); });
  }
}

}  // namespace sluice::test::adamw_test
