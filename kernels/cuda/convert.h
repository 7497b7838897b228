#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/base/half.h"
#include "kernels/cuda/target.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace sluice::cuda {

/// Widens an element to fp32, in which all kernels compute.
template <class T>
__device__ __forceinline__ float to_float(T value) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, Half>)
    return __half2float(__half(__half_raw{value.bits}));
  else
#endif
    return static_cast<float>(value);
}

/// Rounds to nearest, ties to even.
template <class T>
__device__ __forceinline__ T from_float(float value) {
#ifdef __CUDACC__
  T result;
  if constexpr (std::is_same_v<T, Half>) {
    result.bits = static_cast<__half_raw>(__float2half_rn(value)).x;
    return result;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    result.bits = static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(value)).x;
    return result;
  } else {
    return value;
  }
#else
  return static_cast<T>(value);
#endif
}

/// Packs two neighbours of a matrix operand in one register, the first in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pair(float low, float high) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, Half>) {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&both);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&both);
  }
#else
  return static_cast<std::uint32_t>(static_cast<T>(low).bits) |
         static_cast<std::uint32_t>(static_cast<T>(high).bits) << 16;
#endif
}

/// Returns the lower (0) or upper (1) number of a pair.
template <class T>
__device__ __forceinline__ float of_pair(std::uint32_t pair, int which) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, BFloat16>)  // without a detour over a register of 16 bits
    return __uint_as_float(which == 0 ? pair << 16 : pair & 0xFFFF0000u);
#endif
  T result;
  result.bits = static_cast<std::uint16_t>(which == 0 ? pair : pair >> 16);
  return to_float(result);
}

}  // namespace sluice::cuda
