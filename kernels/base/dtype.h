#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/base/error.h"
#include "kernels/base/half.h"

namespace sluice {

/// Element types of tensors. f64 exists to check gradients by finite differences; i32 holds token
/// ids, i16 the remainders of split master weights, u8 the codes of quantized moments, i8 those of
/// quantized matrices.
enum class DType : std::uint8_t { f64, f32, bf16, f16, i32, i16, u8, i8 };

struct DTypeFacts {
  std::string_view name;
  std::size_t bytes;
};
/// One entry per DType, in its order.
inline constexpr DTypeFacts dtype_facts[] = {{"f64", 8}, {"f32", 4}, {"bf16", 2}, {"f16", 2},
                                             {"i32", 4}, {"i16", 2}, {"u8", 1},   {"i8", 1}};

constexpr std::size_t size_of(DType dtype) {
  return dtype_facts[static_cast<std::size_t>(dtype)].bytes;
}
constexpr std::string_view name_of(DType dtype) {
  return dtype_facts[static_cast<std::size_t>(dtype)].name;
}

/// The dtype of sums over `dtype`, of statistics and of parameter gradients: f64 for f64, else f32.
constexpr DType accumulator_of(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

/// The dtype whose elements have the C++ type T.
template <class T>
constexpr DType dtype_for() {
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, BFloat16>) return DType::bf16;
  if constexpr (std::is_same_v<T, Half>) return DType::f16;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, std::int16_t>) return DType::i16;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::u8;
  if constexpr (std::is_same_v<T, std::int8_t>) return DType::i8;
}

/// Turns a run-time dtype into a template argument: calls `body.template operator()<T>()` with T
/// the one of `Types` that `dtype` stands for. Returns false if it is none of them.
template <class... Types, class Body>
bool dispatch_among(DType dtype, Body&& body) {
  const auto call_for = [&]<class T>() {
    if (dtype == dtype_for<T>()) body.template operator()<T>();
    return dtype == dtype_for<T>();
  };
  return (call_for.template operator()<Types>() || ...);
}

template <class Body>
void dispatch_floating(DType dtype, Body&& body) {
  if (!dispatch_among<double, float, BFloat16, Half>(dtype, body))
    fail("this operation needs a floating-point tensor, not " + std::string(name_of(dtype)));
}

}  // namespace sluice
