#include "kernels/relu.h"

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t grain = 1 << 15;

template <class T>
void forward(const T* in, T* out, std::int64_t count) {
  using A = Accumulator<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const A x = static_cast<A>(in[i]);
    store(out[i], x < 0 ? A(0) : x);  // NaN stays NaN
  }
}

template <class T>
void backward(const T* out, const T* grad_out, T* grad_in, std::int64_t count) {
  using A = Accumulator<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i)
    store(grad_in[i], static_cast<A>(out[i]) > 0 ? static_cast<A>(grad_out[i]) : A(0));
}

}  // namespace

void launch_cpu(const ReluForward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    const T* in = op.in.data<T>();
    T* out = op.out.data<T>();
    parallel_ranges(op.in.size(), grain, [=](std::int64_t begin, std::int64_t end) {
      forward(in + begin, out + begin, end - begin);
    });
  });
}

void launch_cpu(const ReluBackward& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    const T* out = op.out.data<T>();
    const T* grad_out = op.grad_out.data<T>();
    T* grad_in = op.grad_in.data<T>();
    parallel_ranges(op.out.size(), grain, [=](std::int64_t begin, std::int64_t end) {
      backward(out + begin, grad_out + begin, grad_in + begin, end - begin);
    });
  });
}

}  // namespace sluice
