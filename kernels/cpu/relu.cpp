#include "kernels/relu.h"

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t grain = 1 << 15;

}  // namespace

void launch_cpu(const ReluForward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const T* in = op.in.data<T>();
    T* out = op.out.data<T>();
    parallel_ranges(op.in.size(), grain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const A x = static_cast<A>(in[i]);
        out[i] = static_cast<T>(x < 0 ? A(0) : x);  // NaN stays NaN
      }
    });
  });
}

void launch_cpu(const ReluBackward& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const T* out = op.out.data<T>();
    const T* grad_out = op.grad_out.data<T>();
    T* grad_in = op.grad_in.data<T>();
    parallel_ranges(op.out.size(), grain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i)
        grad_in[i] =
            static_cast<T>(static_cast<A>(out[i]) > 0 ? static_cast<A>(grad_out[i]) : A(0));
    });
  });
}

}  // namespace sluice
