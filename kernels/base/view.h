#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

namespace sluice {

/// A tensor as a kernel sees it: address, element type, shape and strides (in elements). A View
/// owns nothing; a default View means "not given". The last dimension is contiguous.
struct View {
  static constexpr int max_rank = 4;

  std::byte* address = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> strides{};

  View() = default;
  /// Contiguous, row-major.
  View(std::byte* start, DType type, std::initializer_list<std::int64_t> dimensions)
      : address(start), dtype(type), rank(static_cast<int>(dimensions.size())) {
    check(dimensions.size() <= max_rank, "a View has at most four dimensions");
    std::size_t at = 0;
    for (const auto dimension : dimensions)
      shape[at++] = dimension;
    std::int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      strides[static_cast<std::size_t>(d)] = stride;
      stride *= shape[static_cast<std::size_t>(d)];
    }
  }

  explicit operator bool() const { return address != nullptr; }

  std::int64_t size() const {
    std::int64_t count = 1;
    for (int d = 0; d < rank; ++d)
      count *= shape[static_cast<std::size_t>(d)];
    return count;
  }
  std::int64_t dim(int d) const { return shape[static_cast<std::size_t>(d < 0 ? d + rank : d)]; }
  std::int64_t stride(int d) const {
    return strides[static_cast<std::size_t>(d < 0 ? d + rank : d)];
  }
  /// Product of all dimensions but the last: the number of rows for row-wise kernels.
  std::int64_t rows() const { return dim(-1) == 0 ? 0 : size() / dim(-1); }

  /// The only place where an address becomes a typed pointer.
  template <class T>
  T* data() const {
    check(dtype == dtype_for<T>(), "a View was read as another element type than it holds");
    return reinterpret_cast<T*>(address);
  }
};

}  // namespace sluice
