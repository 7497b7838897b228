#include "kernels/gelu.h"

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr double root_two_over_pi = 0.79788456080286535588;
constexpr double cubic = 0.044715;
constexpr std::int64_t grain = 1 << 14;

// These loops are separate functions: the compiler treats pointers captured by a lambda as memory
// and would use gather instructions.

template <class T>
void forward(const T* in, T* out, std::int64_t count) {
  using A = Accumulator<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const A x = static_cast<A>(in[i]);
    const A inner = A(root_two_over_pi) * (x + A(cubic) * x * x * x);
    store(out[i], A(0.5) * x * (A(1) + fast_tanh(inner)));
  }
}

template <class T>
void backward(const T* in, const T* grad_out, T* grad_in, std::int64_t count) {
  using A = Accumulator<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const A x = static_cast<A>(in[i]);
    const A inner = A(root_two_over_pi) * (x + A(cubic) * x * x * x);
    const A slope = A(root_two_over_pi) * (A(1) + A(3 * cubic) * x * x);
    const A t = fast_tanh(inner);
    const A derivative = A(0.5) * (A(1) + t) + A(0.5) * x * (A(1) - t * t) * slope;
    store(grad_in[i], static_cast<A>(grad_out[i]) * derivative);
  }
}

}  // namespace

void launch_cpu(const GeluForward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    const T* in = op.in.data<T>();
    T* out = op.out.data<T>();
    parallel_ranges(op.in.size(), grain, [=](std::int64_t begin, std::int64_t end) {
      forward(in + begin, out + begin, end - begin);
    });
  });
}

void launch_cpu(const GeluBackward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    const T* in = op.in.data<T>();
    const T* grad_out = op.grad_out.data<T>();
    T* grad_in = op.grad_in.data<T>();
    parallel_ranges(op.in.size(), grain, [=](std::int64_t begin, std::int64_t end) {
      backward(in + begin, grad_out + begin, grad_in + begin, end - begin);
    });
  });
}

}  // namespace sluice
