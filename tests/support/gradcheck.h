#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "engine/gradcheck.h"
#include "kernels/cpu/parallel_for.h"

// Tools of numeric tests: data, arrays for kernels and thread counts. gradcheck() is the engine's.

namespace sluice::test {

using Values = std::vector<double>;

/// Returns uniform values in [-scale, scale), the same on every machine (the standard fixes
/// mt19937_64, but not the library's distributions).
Values random_values(std::int64_t count, std::uint64_t seed, double scale = 1);

/// Returns |actual - expected| / |expected| in the l2 norm; NaN (beyond any bound) if any is NaN.
double relative_l2(const Values& actual, const Values& expected);

/// Returns how far rounding may move a result of this dtype, in relative l2, if sums are kept in
/// its accumulator. The rounding error of one store is about a third of each figure.
double tolerance_of(DType dtype);

/// Host memory of one dtype for kernels. It comes from malloc, not from an arena, so that
/// AddressSanitizer sees every access past an end.
class Array {
 public:
  /// Fills the array with NaN, so that an unwritten result shows.
  Array(DType dtype, std::int64_t count)
      : dtype_(dtype),
        count_(static_cast<std::size_t>(count)),
        bytes_(count_ * size_of(dtype), std::byte{0xFF}) {}
  Array(DType dtype, const Values& values)
      : Array(dtype, static_cast<std::int64_t>(values.size())) {
    set(values);
  }

  void set(const Values& values);
  Values values() const;
  template <class T>
  T* data() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  View view(std::initializer_list<std::int64_t> shape) { return {bytes_.data(), dtype_, shape}; }
  /// Returns all elements in one dimension.
  View flat() { return view({static_cast<std::int64_t>(count_)}); }
  DType dtype() const { return dtype_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  DType dtype_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

inline View view_of(std::vector<std::int32_t>& ids, std::initializer_list<std::int64_t> shape) {
  return {reinterpret_cast<std::byte*>(ids.data()), DType::i32, shape};
}

/// Limits kernels called in its lifetime to that many threads.
using ThreadCount = cpu::ThreadLimit;

/// Returns true if `action` returns the same with 1, 2, 3, 4 and again 2 threads.
template <class Action>
bool same_with_any_threads(Action&& action) {
  const auto run = [&](int threads) {
    const ThreadCount limit(threads);
    return action();
  };
  const auto first = run(1);
  for (const int threads : {2, 3, 4, 2}) {
    if (run(threads) != first) return false;
  }
  return true;
}

}  // namespace sluice::test
