#pragma once

#include <concepts>
#include <limits>
#include <optional>
#include <utility>

namespace sluice {

// Checked arithmetic on sizes that come from files. Every sum, product, alignment and narrowing of
// such a number must use it, because a wrapped number would pass all later comparisons. An empty
// result means that the exact one does not fit.

template <std::unsigned_integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  if (b > std::numeric_limits<T>::max() - a) return std::nullopt;
  return static_cast<T>(a + b);
}

template <std::unsigned_integral T>
constexpr std::optional<T> checked_multiply(T a, T b) {
  if (a != 0 && b > std::numeric_limits<T>::max() / a) return std::nullopt;
  return static_cast<T>(a * b);
}

/// Rounds `value` up to a multiple of `alignment`, which need not be a power of two but not 0.
template <std::unsigned_integral T>
constexpr std::optional<T> checked_align(T value, T alignment) {
  const T excess = static_cast<T>(value % alignment);
  return excess == 0 ? value : checked_add(value, static_cast<T>(alignment - excess));
}

template <std::integral To, std::integral From>
constexpr std::optional<To> checked_narrow(From value) {
  if (!std::in_range<To>(value)) return std::nullopt;
  return static_cast<To>(value);
}

}  // namespace sluice
