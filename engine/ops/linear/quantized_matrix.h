#pragma once

#include <cstdint>

#include "engine/ops/recomputable.h"
#include "engine/tensor.h"

namespace sluice {

/// A matrix that is not trained, as 8-bit integers in blocks of neighbouring elements of a row,
/// each block with a scale (kernels/quantized.h): 8.5 bits an element.
struct QuantizedMatrix {
  Tensor codes{};   ///< [rows, columns], i8
  Tensor scales{};  ///< [rows, quantized_blocks(columns)], f16

  static QuantizedMatrix zeros(const DevicePtr& device, std::int64_t rows, std::int64_t columns);

  explicit operator bool() const { return static_cast<bool>(codes); }
  /// Returns the values that the codes stand for, rounded to `dtype`: a tensor of its own.
  Tensor dequantized(DType dtype) const;
  /// Returns them each time that a backward step asks. Keeps the codes alone.
  Recomputable recomputable(DType dtype) const;
};

}  // namespace sluice
