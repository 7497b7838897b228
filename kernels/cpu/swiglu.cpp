#include "kernels/swiglu.h"

#include <algorithm>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t elements_per_task = 1 << 14;

template <class A>
A sigmoid(A x) {
  return A{1} / (A{1} + fast_exp(-x));
}

// The loops are functions of their own: the compiler treats pointers captured by a lambda as memory
// and would use gather instructions.

template <class T>
void forward_row(T* out, const T* gate, const T* up, std::int64_t width) {
  using A = Accumulator<T>;
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) {
    const A g = static_cast<A>(gate[j]);
    store(out[j], g * sigmoid(g) * static_cast<A>(up[j]));
  }
}

/// silu'(g) = s + g * s * (1 - s) with s = sigmoid(g).
template <class T>
void backward_row(T* grad_gate, T* grad_up, const T* grad_out, const T* gate, const T* up,
                  std::int64_t width) {
  using A = Accumulator<T>;
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) {
    const A g = static_cast<A>(gate[j]), u = static_cast<A>(up[j]);
    const A grad = static_cast<A>(grad_out[j]);
    const A s = sigmoid(g);
    store(grad_gate[j], grad * u * (s + g * s * (A{1} - s)));
    store(grad_up[j], grad * g * s);
  }
}

/// Calls `row(i)` for every row, several in a task if they are short.
template <class Row>
void for_rows(const View& out, const Row& row) {
  const std::int64_t grain = std::max<std::int64_t>(1, elements_per_task / out.dim(-1));
  parallel_ranges(out.rows(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      row(i);
  });
}

}  // namespace

void launch_cpu(const SwigluForward& op) {
  const std::int64_t width = op.out.dim(-1);
  dispatch_floating(op.out.dtype, [&]<class T>() {
    for_rows(op.out, [&](std::int64_t i) {
      const T* in = op.in.data<T>() + i * 2 * width;
      forward_row(op.out.data<T>() + i * width, in, in + width, width);
    });
  });
}

void launch_cpu(const SwigluBackward& op) {
  const std::int64_t width = op.grad_out.dim(-1);
  dispatch_floating(op.grad_out.dtype, [&]<class T>() {
    for_rows(op.grad_out, [&](std::int64_t i) {
      const T* in = op.in.data<T>() + i * 2 * width;
      T* grad_in = op.grad_in.data<T>() + i * 2 * width;
      backward_row(grad_in, grad_in + width, op.grad_out.data<T>() + i * width, in, in + width,
                   width);
    });
  });
}

}  // namespace sluice
