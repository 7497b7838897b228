#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

/// Element types of tensors. f64 exists to check gradients by finite differences; i32 holds token
/// ids, i16 the remainders of split master weights, u8 the codes of quantized moments.
enum class DType : std::uint8_t { f64, f32, bf16, f16, i32, i16, u8 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::f16:
      return 2;
    case DType::i32:
      return 4;
    case DType::i16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i16:
      return "i16";
    case DType::u8:
      return "u8";
  }
  return "?";
}

constexpr bool is_floating(DType dtype) {
  return dtype != DType::i32 && dtype != DType::i16 && dtype != DType::u8;
}

/// The dtype of sums over `dtype`, of statistics and of parameters' gradients: f64 for f64, else
/// f32.
constexpr DType accumulator_of(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

}  // namespace sluice
