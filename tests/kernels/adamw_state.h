#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/tensor.h"
#include "kernels/adamw.h"
#include "kernels/base/run.h"
#include "tests/support/gradcheck.h"

// The layouts of optimizer state, for tests of AdamW on any device.

namespace sluice::test {

enum class Weights : std::uint8_t { master, bf16, f16, split };

struct Layout {
  DType first = DType::f32, second = DType::f32;
  Weights weights = Weights::master;
  DType grad = DType::f32;

  bool coded() const { return first == DType::u8; }
  std::string name() const;
};

/// Returns all layouts except f64's.
std::vector<Layout> adamw_layouts();

/// Returns the values of a dynamic map by its definition, in ascending order, 0 first.
inline std::vector<double> values_of_map(int widest) {
  std::vector<double> values{0};
  for (int n = widest, k = 0; n > 0; n /= 2, ++k)
    for (int j = 0; j < n; ++j)
      values.push_back(std::pow(10.0, -k) * (0.1 + 0.9 * (j + 1) / n));
  std::sort(values.begin(), values.end());
  return values;
}

/// Returns codes from all decades and some 0, but never the unused code of the signed map.
std::vector<std::uint8_t> random_codes(std::int64_t count, std::uint64_t seed);

/// Arrays of one layout, filled with the same numbers on every device.
struct AdamWState {
  Layout layout;
  std::int64_t rows, columns;
  Tensor master{}, working{}, remainder{}, first{}, second{}, first_scale{}, second_scale{}, grad{};

  AdamWState(const DevicePtr& device, const Layout& layout, std::int64_t rows,
             std::int64_t columns);

  std::int64_t row_blocks() const { return (columns + AdamW::block - 1) / AdamW::block; }
  void set_grad(const Values& values);
  /// Clears the moments, codes included.
  void clear_moments();

  /// Returns the update of rows [begin, end).
  AdamW op(std::int64_t begin, std::int64_t end) const;
  AdamW op() const { return op(0, rows); }
  void update(const AdamW& what) const { run(what, first.stream()); }

  /// Returns everything that an update writes.
  std::vector<std::vector<std::byte>> bytes() const;
  /// Returns the master weights, however they are stored; the next two return m and v.
  Values weights() const;
  Values first_values() const;
  Values second_values() const;
};

}  // namespace sluice::test
