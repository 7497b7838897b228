#include "bench/kernels/case.h"

namespace sluice::bench {

std::int64_t Operand::elements() const {
  if (row_stride != 0) return shape[0] * row_stride;
  std::int64_t count = 1;
  for (const auto dimension : shape)
    count *= dimension;
  return count;
}

View Operand::view(std::byte* address) const {
  const auto at = [this](std::size_t d) { return d < shape.size() ? shape[d] : 1; };
  View result;
  switch (shape.size()) {
    case 1:
      result = View(address, dtype, {at(0)});
      break;
    case 2:
      result = View(address, dtype, {at(0), at(1)});
      break;
    case 3:
      result = View(address, dtype, {at(0), at(1), at(2)});
      break;
    default:
      result = View(address, dtype, {at(0), at(1), at(2), at(3)});
  }
  if (row_stride != 0) result.strides[0] = row_stride;
  return result;
}

double bytes_of(const std::vector<Operand>& operands) {
  double sum = 0;
  for (const auto& operand : operands) {
    const double times = operand.role == Role::updated ? 2 : 1;
    sum += times * static_cast<double>(operand.bytes());
  }
  return sum;
}

std::vector<DType> model_dtypes() {
  return {DType::f32, DType::bf16, DType::f16};
}

std::string label_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "fp64";
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::i32:
      return "int32";
    case DType::i16:
      return "int16";
    case DType::u8:
      return "uint8";
    case DType::i8:
      return "int8";
  }
  return "?";
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_gemm_cases(cases);
  add_attention_cases(cases);
  add_norm_cases(cases);
  add_elementwise_cases(cases);
  add_query_key_value_cases(cases);
  add_head_cases(cases);
  add_update_cases(cases);
#ifdef SLUICE_HAS_CUDNN
  add_cudnn_cases(cases);
#endif
  return cases;
}

}  // namespace sluice::bench
