#include "kernels/cuda/simt/wgmma.h"

#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/half.h"
#include "kernels/cuda/simt/block.h"

namespace sluice::simt {
namespace {

using Product = WarpProducts::Product;

/// An operand in shared memory with rows of 128 bytes, from its descriptor.
struct Operand {
  explicit Operand(std::uint64_t descriptor)
      : start((descriptor & 0x3FFF) << 4),
        to_next_columns((descriptor >> 16 & 0x3FFF) << 4),
        to_next_rows((descriptor >> 32 & 0x3FFF) << 4) {
    constexpr std::uint64_t swizzle_of_128_bytes = 1;
    check(descriptor >> 62 == swizzle_of_128_bytes, "wgmma: a descriptor has another swizzle");
  }

  /// The element in this row and column. The hardware swizzles the address itself.
  template <class T>
  float at(std::size_t row, std::size_t column) const {
    std::size_t offset = start + row / 8 * to_next_rows + row % 8 * 128 +
                         column / 64 * to_next_columns + column % 64 * sizeof(T);
    offset ^= (offset >> 7 & 7) << 4;
    BlockRunner& runner = BlockRunner::here();
    check(offset + sizeof(T) <= runner.shared_bytes(),
          "wgmma: an operand lies beyond the block's shared memory");
    T value;
    std::memcpy(&value, runner.shared() + offset, sizeof(T));
    return static_cast<float>(value);
  }

  std::size_t start, to_next_columns, to_next_rows;
};

template <class T>
float element(std::uint32_t pair, int which) {
  T value;
  value.bits = static_cast<std::uint16_t>(pair >> (16 * which));
  return static_cast<float>(value);
}

/// The 16 x 16 left operand of the product's warp.
template <class T>
void load_left(const Product& product, float (&a)[16][16]) {
  if (product.described) {
    const Operand operand(product.a);
    for (std::size_t row = 0; row < 16; ++row)
      for (std::size_t k = 0; k < 16; ++k)
        a[row][k] = operand.at<T>(16 * product.warp + row, k);
    return;
  }
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t part = 0; part < 4; ++part)
      for (int i = 0; i < 2; ++i)
        a[lane / 4 + 8 * (part % 2)][lane % 4 * 2 + static_cast<std::size_t>(i) + 8 * (part / 2)] =
            element<T>(product.left[lane][part], i);
}

template <class T>
void multiply(const Product& product, float* sums) {
  float a[16][16];
  load_left<T>(product, a);
  const Operand b(product.b);
  for (std::size_t tile = 0; tile < static_cast<std::size_t>(product.tiles); ++tile) {
    float columns[16][8];
    for (std::size_t k = 0; k < 16; ++k)
      for (std::size_t n = 0; n < 8; ++n)
        columns[k][n] = product.described ? b.at<T>(8 * tile + n, k) : b.at<T>(k, 8 * tile + n);
    for (std::size_t lane = 0; lane < 32; ++lane)
      for (std::size_t i = 0; i < 4; ++i) {
        float& sum = sums[(lane * static_cast<std::size_t>(product.tiles) + tile) * 4 + i];
        for (std::size_t k = 0; k < 16; ++k)
          sum += a[lane / 4 + i / 2 * 8][k] * columns[k][lane % 4 * 2 + i % 2];
      }
  }
}

struct LaneProduct {
  float* sums;
  const std::uint32_t* a;
  std::uint64_t left, b;
};
struct Nothing {};

template <class Work>
void of_whole_warp(Meeting kind, Work&& work) {
  BlockRunner::here().meet<Nothing, Nothing>(kind, {}, [&](const Nothing*, Nothing*) { work(); });
}

}  // namespace

std::uintptr_t shared_offset(const void* address) {
  return static_cast<std::uintptr_t>(static_cast<const std::byte*>(address) -
                                     BlockRunner::here().shared());
}

template <class T>
void wgmma(float* sums, int tiles, const std::uint32_t* a, std::uint64_t left, std::uint64_t b,
           bool add) {
  BlockRunner& runner = BlockRunner::here();
  const unsigned warp = runner.warp() % 4;
  const auto start = [&](const LaneProduct* lanes, Nothing*) {
    Product product{.multiply = multiply<T>,
                    .sums = {},
                    .tiles = tiles,
                    .described = a == nullptr,
                    .left = {},
                    .a = left,
                    .b = b,
                    .add = add,
                    .warp = warp,
                    .group = 0};
    for (std::size_t lane = 0; lane < 32; ++lane) {
      check(lanes[lane].left == left && lanes[lane].b == b, "wgmma: the lanes' descriptors differ");
      product.sums[lane] = lanes[lane].sums;
      product.left[lane] = lanes[lane].a;
    }
    runner.products().start(product);
    if (runner.draw() % 2 == 0) runner.products().run();
  };
  runner.meet<LaneProduct, Nothing>(Meeting::wgmma, {sums, a, left, b}, start);
}
template void wgmma<Half>(float*, int, const std::uint32_t*, std::uint64_t, std::uint64_t, bool);
template void wgmma<BFloat16>(float*, int, const std::uint32_t*, std::uint64_t, std::uint64_t,
                              bool);

void wgmma_commit() {
  of_whole_warp(Meeting::commit, [] { BlockRunner::here().products().end_group(); });
}

void wgmma_wait(unsigned pending) {
  of_whole_warp(Meeting::wait, [pending] { BlockRunner::here().products().wait(pending); });
}

}  // namespace sluice::simt
