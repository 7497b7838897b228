#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Elements of a row that share a scale in a matrix of 8-bit integers. A row's last block may be
/// shorter.
inline constexpr std::int64_t quantized_block = 32;

constexpr std::int64_t quantized_blocks(std::int64_t columns) {
  return (columns + quantized_block - 1) / quantized_block;
}

/// Throws Error unless codes and scales are those of a matrix of this shape.
inline void check_quantized(const View& matrix, const View& codes, const View& scales) {
  check(codes.dtype == DType::i8 && scales.dtype == DType::f16 && codes.dim(-1) == matrix.dim(-1) &&
            codes.rows() == matrix.rows() && scales.rows() == matrix.rows() &&
            scales.dim(-1) == quantized_blocks(matrix.dim(-1)),
        "the codes and scales do not fit the matrix");
}

/// Rounds a matrix to 8-bit integers, each block with the bits of ggml's format Q8_0: with s, the
/// largest magnitude of a block divided by 127,
///   codes = in / s, rounded to the nearest integer, ties away from zero;   scales = s in f16
/// so that codes * scales differs from `in` by at most 0.57 s, or by 4e-6 + s / 2 where s is below
/// the normal numbers of f16 (6.1e-5). A scale is infinite if s is above 65504.
/// in: [rows, columns], f32; codes: the same shape, i8; scales: [rows, quantized_blocks(columns)],
/// f16. Runs on the CPU alone, since models are quantized while they are read from files.
struct Quantize {
  View codes;
  View scales;
  View in;
};
void launch_cpu(const Quantize& op);

/// out = codes * scales, rounded to out's dtype. out: [rows, columns]; the others as above.
struct Dequantize {
  View out;
  View codes;
  View scales;
};
void launch_cpu(const Dequantize& op);
void launch_cuda(const Dequantize& op, Stream stream);

}  // namespace sluice
