#include "kernels/elementwise.h"

#include "kernels/base/dispatch.h"
#include "kernels/cpu/master_weight.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t grain = 1 << 15;

}  // namespace

void launch_cpu(const Add& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const T* a = op.a.data<T>();
    const T* b = op.b.data<T>();
    T* out = op.out.data<T>();
    parallel_ranges(op.out.size(), grain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i)
        out[i] = static_cast<T>(static_cast<A>(a[i]) + static_cast<A>(b[i]));
    });
  });
}

void launch_cpu(const Cast& op) {
  dispatch_floating(op.in.dtype, [&]<class In>() {
    dispatch_floating(op.out.dtype, [&]<class Out>() {
      const In* in = op.in.data<In>();
      Out* out = op.out.data<Out>();
      const bool half_away = op.half_away;
      parallel_ranges(op.out.size(), grain, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const auto value = static_cast<Accumulator<Out>>(static_cast<Accumulator<In>>(in[i]));
          out[i] = half_away ? working_weight<Out>(value) : static_cast<Out>(value);
        }
      });
    });
  });
}

void launch_cpu(const Fill& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    T* out = op.out.data<T>();
    const T value = static_cast<T>(static_cast<Accumulator<T>>(op.value));
    parallel_ranges(op.out.size(), grain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        out[i] = value;
    });
  });
}

}  // namespace sluice
