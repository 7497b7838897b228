#include "kernels/swiglu.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 256;

__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal(1.0f + exp2_fast(-x * log2_e));
}

// A block has a row, and its threads take N neighbouring columns of the gate and of up in turn.

template <class T, int N>
__global__ void __launch_bounds__(threads) forward(T* out, const T* in, int width) {
  const T* const gates = in + std::int64_t{blockIdx.x} * 2 * width;
  T* const results = out + std::int64_t{blockIdx.x} * width;
  for (int at = static_cast<int>(threadIdx.x) * N; at < width;
       at += static_cast<int>(blockDim.x) * N) {
    float gate[N], up[N];
    load_floats(gate, gates + at);
    load_floats(up, gates + width + at);
#pragma unroll
    for (int i = 0; i < N; ++i)
      gate[i] = gate[i] * sigmoid(gate[i]) * up[i];
    store_floats(results + at, gate);
  }
}

/// silu'(g) = s + g * s * (1 - s) with s = sigmoid(g).
template <class T, int N>
__global__ void __launch_bounds__(threads)
    backward(T* grad_in, const T* grad_out, const T* in, int width) {
  const T* const gates = in + std::int64_t{blockIdx.x} * 2 * width;
  const T* const grads = grad_out + std::int64_t{blockIdx.x} * width;
  T* const results = grad_in + std::int64_t{blockIdx.x} * 2 * width;
  for (int at = static_cast<int>(threadIdx.x) * N; at < width;
       at += static_cast<int>(blockDim.x) * N) {
    float gate[N], up[N], grad[N], grad_gate[N], grad_up[N];
    load_floats(gate, gates + at);
    load_floats(up, gates + width + at);
    load_floats(grad, grads + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float s = sigmoid(gate[i]);
      grad_gate[i] = grad[i] * up[i] * (s + gate[i] * (s - s * s));
      grad_up[i] = grad[i] * gate[i] * s;
    }
    store_floats(results + at, grad_gate);
    store_floats(results + width + at, grad_up);
  }
}

/// Calls `body.operator()<T, N>(grid, block)` with as many elements a thread as the addresses
/// allow.
template <class Body>
void dispatch_rows(const View& out, std::initializer_list<View> views, Body&& body) {
  dispatch(out.dtype, [&]<class T>() {
    const auto start = [&]<int N>() {
      const unsigned warps = pieces(out.dim(-1) / N, warp_size);
      body.template operator()<T, N>(dim3{static_cast<unsigned>(out.rows())},
                                     dim3{std::min<unsigned>(threads, warps * warp_size)});
    };
    if (out.dim(-1) % wide<T> == 0 && aligned(16, views))
      return start.template operator()<wide<T>>();
    start.template operator()<1>();
  });
}

}  // namespace

void launch_cuda(const SwigluForward& op, Stream stream) {
  dispatch_rows(op.out, {op.out, op.in}, [&]<class T, int N>(dim3 grid, dim3 block) {
    launch(forward<T, N>, grid, block, 0, stream, op.out.data<T>(), op.in.data<T>(),
           op.out.dim(-1));
  });
}

void launch_cuda(const SwigluBackward& op, Stream stream) {
  dispatch_rows(op.grad_out, {op.grad_in, op.grad_out, op.in},
                [&]<class T, int N>(dim3 grid, dim3 block) {
                  launch(backward<T, N>, grid, block, 0, stream, op.grad_in.data<T>(),
                         op.grad_out.data<T>(), op.in.data<T>(), op.grad_out.dim(-1));
                });
}

}  // namespace sluice
