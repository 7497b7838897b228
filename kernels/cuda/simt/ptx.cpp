#include "kernels/cuda/simt/ptx.h"

#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/half.h"
#include "kernels/cuda/simt/block.h"

namespace sluice::simt {
namespace {

void land(const BlockRunner::PendingCopy& copy) {
  if (copy.bytes > 0)
    std::memcpy(copy.to, copy.from, 16);
  else
    std::memset(copy.to, 0, 16);
}

template <class T>
float element(std::uint32_t pair, int which) {
  T value;
  value.bits = static_cast<std::uint16_t>(pair >> (16 * which));
  return static_cast<float>(value);
}

struct MmaIn {
  std::uint32_t a[4], b[2];
  float c[4];
};
struct MmaOut {
  float d[4];
};

template <class T>
void multiply(const MmaIn* in, MmaOut* out) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      for (int part = 0; part < 4; ++part)
        a[g + 8 * (part % 2)][2 * t + i + 8 * (part / 2)] = element<T>(in[lane].a[part], i);
      for (int part = 0; part < 2; ++part)
        b[2 * t + i + 8 * part][g] = element<T>(in[lane].b[part], i);
      for (int half = 0; half < 2; ++half)
        d[g + 8 * half][2 * t + i] = in[lane].c[2 * half + i];
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column)
        d[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i)
      out[lane].d[i] = d[g + 8 * (i / 2)][2 * t + i % 2];
  }
}

struct Words {
  std::uint32_t words[4];
};

}  // namespace

void cp_async_16(std::uintptr_t to, const void* from, bool valid) {
  check(to % 16 == 0 && (!valid || reinterpret_cast<std::uintptr_t>(from) % 16 == 0),
        "cp.async: an address is not 16-byte aligned");
  BlockRunner& runner = BlockRunner::here();
  auto& copies = runner.copies();
  const BlockRunner::PendingCopy copy{reinterpret_cast<std::byte*>(to),
                                      static_cast<const std::byte*>(from), valid ? 16u : 0u,
                                      copies.group};
  if (runner.draw() % 2 == 0)
    land(copy);
  else
    copies.pending.push_back(copy);
}

void cp_async_commit() {
  ++BlockRunner::here().copies().group;
}

void cp_async_wait(unsigned pending) {
  auto& copies = BlockRunner::here().copies();
  const auto landed = [&](const BlockRunner::PendingCopy& copy) {
    if (copy.group + pending >= copies.group) return false;
    land(copy);
    return true;
  };
  std::erase_if(copies.pending, landed);
}

template <class T>
void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                 const float (&c)[4]) {
  MmaIn in;
  std::memcpy(in.a, a, sizeof(a));
  std::memcpy(in.b, b, sizeof(b));
  std::memcpy(in.c, c, sizeof(c));
  const auto out = BlockRunner::here().meet<MmaIn, MmaOut>(Meeting::mma, in, multiply<T>);
  std::memcpy(d, out.d, sizeof(d));
}
template void mma_16x8x16<Half>(float (&)[4], const std::uint32_t (&)[4],
                                const std::uint32_t (&)[2], const float (&)[4]);
template void mma_16x8x16<BFloat16>(float (&)[4], const std::uint32_t (&)[4],
                                    const std::uint32_t (&)[2], const float (&)[4]);

void ldmatrix_x4(std::uint32_t (&to)[4], std::uintptr_t row, bool transposed) {
  check(row % 16 == 0, "ldmatrix: a row is not 16-byte aligned");
  const auto out = BlockRunner::here().meet<std::uintptr_t, Words>(
      Meeting::ldmatrix, row, [transposed](const std::uintptr_t* rows, Words* words) {
        for (int matrix = 0; matrix < 4; ++matrix) {
          std::uint16_t elements[8][8];
          for (int i = 0; i < 8; ++i)
            std::memcpy(elements[i], reinterpret_cast<const void*>(rows[8 * matrix + i]), 16);
          for (int lane = 0; lane < 32; ++lane) {
            const int g = lane / 4, t = lane % 4;
            const std::uint32_t low = transposed ? elements[2 * t][g] : elements[g][2 * t];
            const std::uint32_t high = transposed ? elements[2 * t + 1][g] : elements[g][2 * t + 1];
            words[lane].words[matrix] = low | high << 16;
          }
        }
      });
  std::memcpy(to, out.words, sizeof(to));
}

}  // namespace sluice::simt
