#include "engine/ops/linear/quantized_matrix.h"

#include "kernels/base/run.h"
#include "kernels/quantized.h"

namespace sluice {

QuantizedMatrix QuantizedMatrix::zeros(const DevicePtr& device, std::int64_t rows,
                                       std::int64_t columns) {
  return {.codes = Tensor::zeros(device, {rows, columns}, DType::i8),
          .scales = Tensor::zeros(device, {rows, quantized_blocks(columns)}, DType::f16)};
}

Tensor QuantizedMatrix::dequantized(DType dtype) const {
  const Tensor out = Tensor::empty(codes.device(), codes.shape(), dtype);
  run(Dequantize{.out = out.view(), .codes = codes.view(), .scales = scales.view()}, out.stream());
  return out;
}

Recomputable QuantizedMatrix::recomputable(DType dtype) const {
  return {{{"codes", codes}, {"scales", scales}},
          [matrix = *this, dtype] { return matrix.dequantized(dtype); }};
}

}  // namespace sluice
