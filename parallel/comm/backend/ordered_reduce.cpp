#include "parallel/comm/backend/ordered_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>, float, T>;

/// The number of elements in a tile, which is meant to stay in L1 while contributions are added;
/// not measured.
constexpr std::int64_t tile = 2048;

template <class T, class Combine>
void reduce_tile(T* out, std::span<const std::byte* const> contributions, std::int64_t first,
                 std::int64_t count, Combine combine) {
  Sum<T> sums[tile];
  const auto at = [&](std::size_t rank) {
    return reinterpret_cast<const T*>(contributions[rank]) + first;
  };
  const T* in = at(0);
  for (std::int64_t i = 0; i < count; ++i)
    sums[i] = static_cast<Sum<T>>(in[i]);
  for (std::size_t rank = 1; rank < contributions.size(); ++rank) {
    in = at(rank);
    for (std::int64_t i = 0; i < count; ++i)
      sums[i] = combine(sums[i], static_cast<Sum<T>>(in[i]));
  }
  for (std::int64_t i = 0; i < count; ++i)
    out[first + i] = static_cast<T>(sums[i]);
}

template <class T>
void reduce(const View& out, std::span<const std::byte* const> contributions, ReduceOp op) {
  T* const to = out.data<T>();
  constexpr std::int64_t grain = 64 * tile;
  cpu::parallel_ranges(out.size(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += tile) {
      const std::int64_t count = std::min(tile, end - first);
      using S = Sum<T>;
      if (op == ReduceOp::sum)
        reduce_tile(to, contributions, first, count,
                    [](S a, S b) { return static_cast<S>(a + b); });
      else  // a NaN counts as the maximum, so that it is never hidden
        reduce_tile(to, contributions, first, count,
                    [](S a, S b) { return a > b || a != a ? a : b; });
    }
  });
}

}  // namespace

void ordered_reduce(const View& out, std::span<const std::byte* const> contributions, ReduceOp op) {
  switch (out.dtype) {
    case DType::f64:
      return reduce<double>(out, contributions, op);
    case DType::f32:
      return reduce<float>(out, contributions, op);
    case DType::bf16:
      return reduce<BFloat16>(out, contributions, op);
    case DType::f16:
      return reduce<Half>(out, contributions, op);
    case DType::i32:
      return reduce<std::int32_t>(out, contributions, op);
    default:
      fail(fmt::format("numbers of type {} cannot be reduced over ranks", name_of(out.dtype)));
  }
}

}  // namespace sluice
