#include "kernels/cuda/simt/matrix.h"

#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/half.h"
#include "kernels/cuda/simt/block.h"

namespace sluice::simt {
namespace {

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

template <class T>
void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  MmaIn in;
  std::memcpy(in.a, a, sizeof(a));
  std::memcpy(in.b, b, sizeof(b));
  std::memcpy(in.c, d, sizeof(d));
  const auto out = BlockRunner::here().meet<MmaIn, MmaOut>(Meeting::mma, in, multiply<T>);
  std::memcpy(d, out.d, sizeof(d));
}
template void mma_16x8x16<Half>(float (&)[4], const std::uint32_t (&)[4],
                                const std::uint32_t (&)[2]);
template void mma_16x8x16<BFloat16>(float (&)[4], const std::uint32_t (&)[4],
                                    const std::uint32_t (&)[2]);

void ldmatrix_x4(std::uint32_t (&to)[4], const void* row, bool transposed) {
  check(reinterpret_cast<std::uintptr_t>(row) % 16 == 0, "ldmatrix: a row is not 16-byte aligned");
  const auto out = BlockRunner::here().meet<const void*, Words>(
      Meeting::ldmatrix, row, [transposed](const void* const* rows, Words* words) {
        for (int matrix = 0; matrix < 4; ++matrix) {
          std::uint16_t elements[8][8];
          for (int i = 0; i < 8; ++i)
            std::memcpy(elements[i], rows[8 * matrix + i], 16);
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
