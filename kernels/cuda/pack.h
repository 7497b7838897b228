#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/base/error.h"
#include "kernels/base/view.h"
#include "kernels/cuda/convert.h"

namespace sluice::cuda {

/// N neighbouring elements, accessed 16 bytes at a time, or at once if they are fewer bytes.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T values[N];
};

/// Number of elements of T in 16 bytes.
template <class T>
constexpr int wide = static_cast<int>(16 / sizeof(T));

#ifndef __CUDACC__
/// Throws for a misaligned access, on which a GPU would raise a fault.
template <class P>
void require_alignment(const void* address) {
  check(reinterpret_cast<std::uintptr_t>(address) % alignof(P) == 0, "a misaligned access");
}
#endif

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
#ifndef __CUDACC__
  require_alignment<Pack<T, N>>(from);
#endif
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <int N, class T>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
#ifndef __CUDACC__
  require_alignment<Pack<T, N>>(to);
#endif
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

/// N neighbouring elements whose use may come long after their load. Two of 16 bits share a
/// register; in a Pack each would have its own.
template <class T, int N>
struct Packed {
  static_assert(N * sizeof(T) % sizeof(std::uint32_t) == 0);
  Pack<std::uint32_t, N* static_cast<int>(sizeof(T)) / 4> words;

  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (sizeof(T) == 2)
      return of_pair<T>(words.values[i / 2], i % 2);
    else
      return std::bit_cast<float>(words.values[i]);
  }
};

template <int N, class T>
__device__ __forceinline__ Packed<T, N> load_packed(const T* from) {
  using Words = decltype(Packed<T, N>::words);
#ifdef __CUDACC__
  return {*reinterpret_cast<const Words*>(from)};
#else
  require_alignment<Words>(from);
  Packed<T, N> result;
  std::memcpy(&result, from, sizeof(result));
  return result;
#endif
}

/// Loads N elements as fp32.
template <int N, class T>
__device__ __forceinline__ void load_floats(float (&to)[N], const T* from) {
  if constexpr (N * sizeof(T) % sizeof(std::uint32_t) == 0) {
    const Packed<T, N> packed = load_packed<N>(from);
#pragma unroll
    for (int i = 0; i < N; ++i)
      to[i] = packed[i];
  } else {
    const Pack<T, N> pack = load<N>(from);
#pragma unroll
    for (int i = 0; i < N; ++i)
      to[i] = to_float(pack.values[i]);
  }
}

template <int N, class T>
__device__ __forceinline__ void store_floats(T* to, const float (&from)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i)
    pack.values[i] = from_float<T>(from[i]);
  store<N>(to, pack);
}

/// True if the rows of these Views can be read `bytes` at a time: their addresses and row strides
/// are multiples of it. Views that were not given are ignored.
inline bool aligned(std::size_t bytes, std::initializer_list<View> views) {
  for (const View& view : views) {
    if (!view) continue;
    if (reinterpret_cast<std::uintptr_t>(view.address) % bytes != 0) return false;
    for (int d = 0; d + 1 < view.rank; ++d)
      if (static_cast<std::size_t>(view.stride(d)) * size_of(view.dtype) % bytes != 0) return false;
  }
  return true;
}

}  // namespace sluice::cuda
