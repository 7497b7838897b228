#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx/math.h"

namespace sluice::cuda {

constexpr int map_threads = 256;

/// Computes out[i] = f(in[i]...) in fp32, N elements per thread.
template <int N, class Out, class F, class... In>
__global__ void __launch_bounds__(map_threads)
    map_kernel(Out* out, std::int64_t count, F f, const In*... in) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (first + N <= count) {
    const auto combine = [&](const Pack<In, N>&... packs) {
      Pack<Out, N> result;
#pragma unroll
      for (int i = 0; i < N; ++i)
        result.values[i] = from_float<Out>(f(to_float(packs.values[i])...));
      store<N>(out + first, result);
    };
    combine(load<N>(in + first)...);
  } else {
    for (std::int64_t i = first; i < count; ++i)
      out[i] = from_float<Out>(f(to_float(in[i])...));
  }
}

/// Launches map_kernel with the widest accesses that the addresses allow. `f` is a struct whose
/// operator() takes one float per input.
template <class Out, class F, class... In>
void map(Stream stream, std::int64_t count, F f, Out* out, const In*... in) {
  // The number of elements that fill 16 bytes of the narrowest type, at most 8.
  constexpr int elements = 8;
  const auto misaligned = [](const void* address, std::size_t size) {
    return reinterpret_cast<std::uintptr_t>(address) %
               (size * elements < 16 ? size * elements : 16) !=
           0;
  };
  const bool single = misaligned(out, sizeof(Out)) || (misaligned(in, sizeof(In)) || ... || false);
  if (single)
    launch(map_kernel<1, Out, F, In...>, {pieces(count, map_threads)}, {map_threads}, 0, stream,
           out, count, f, in...);
  else
    launch(map_kernel<elements, Out, F, In...>, {pieces(count, map_threads * elements)},
           {map_threads}, 0, stream, out, count, f, in...);
}

}  // namespace sluice::cuda
