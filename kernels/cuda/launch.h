#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/target.h"

#ifdef __CUDACC__
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/stream.h"
#else
#include <functional>
#include <tuple>

#include "kernels/cuda/simt/device.h"
#endif

namespace sluice::cuda {

/// Like dispatch_floating, for the types of the GPU kernels. f64 is only for tests on the CPU.
template <class Body>
void dispatch(DType dtype, Body&& body) {
  if (!dispatch_among<float, BFloat16, Half>(dtype, body))
    fail("the GPU kernels compute in f32, bf16 and f16, not in " + std::string(name_of(dtype)) +
         "; use --device cpu");
}

/// Launches a kernel; there is no other way. Kernels run in the order of the stream's launches, and
/// the call returns at once. Throws Error for a shape that the device cannot run.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
            Stream stream, Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  check(block.x * block.y * block.z <= 1024, "a kernel was launched with more than 1024 threads");
  check(shared_bytes <= queue_of(stream).shared_limit,
        "a kernel was launched with more shared memory than a block of this GPU has");
  check(grid.y < 65536 && grid.z < 65536, "a kernel was launched with too large a grid");
  ++queue_of(stream).launches;
#ifdef __CUDACC__
  const cudaStream_t handle = handle_of(stream);  // selects the device
  constexpr std::size_t free_limit = 48 << 10;    // larger sizes need an attribute
  if (shared_bytes > free_limit) {
    const auto* function = reinterpret_cast<const void*>(kernel);
    std::size_t& allowed = device_queue_of(stream).shared_allowed[function];
    if (allowed < shared_bytes)
      SLUICE_CUDA_CHECK(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(shared_bytes)));
    allowed = std::max(allowed, shared_bytes);
  }
  kernel<<<grid, block, shared_bytes, handle>>>(static_cast<Params>(args)...);
  SLUICE_CUDA_CHECK(cudaGetLastError());
#else
  simt::enqueue(stream, {.body = [kernel, arguments = std::tuple<Params...>(static_cast<Params>(
                                              args)...)] { std::apply(kernel, arguments); },
                         .grid = grid,
                         .block = block,
                         .shared_bytes = shared_bytes});
#endif
}

/// Number of pieces of `size` that cover `count`.
template <class Size>
constexpr unsigned pieces(std::int64_t count, Size size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

#ifdef __CUDACC__
extern __shared__ __align__(1024) unsigned char shared_bytes_of_block[];
#endif

/// The block's shared memory, of the size given at the launch. A kernel declares a struct with all
/// it shares and is launched with its size; there is no other shared memory.
template <class T>
__device__ __forceinline__ T& shared_memory() {
#ifdef __CUDACC__
  return *reinterpret_cast<T*>(shared_bytes_of_block);
#else
  return *reinterpret_cast<T*>(simt::shared_memory(sizeof(T), alignof(T)));
#endif
}

}  // namespace sluice::cuda
