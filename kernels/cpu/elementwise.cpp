#include "kernels/elementwise.h"

#include <algorithm>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/master_weight.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t grain = 1 << 15;

template <class T>
void add(const T* a, const T* b, T* out, std::int64_t count) {
  using A = Accumulator<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i)
    store(out[i], static_cast<A>(a[i]) + static_cast<A>(b[i]));
}

template <bool half_away, class In, class Out>
void convert(const In* in, Out* out, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<Accumulator<Out>>(static_cast<Accumulator<In>>(in[i]));
    if constexpr (half_away)
      store_working(out[i], value);
    else
      store(out[i], value);
  }
}

}  // namespace

void launch_cpu(const Add& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    const T* a = op.a.data<T>();
    const T* b = op.b.data<T>();
    T* out = op.out.data<T>();
    parallel_ranges(op.out.size(), grain, [=](std::int64_t begin, std::int64_t end) {
      add(a + begin, b + begin, out + begin, end - begin);
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
        if (half_away)
          convert<true>(in + begin, out + begin, end - begin);
        else
          convert<false>(in + begin, out + begin, end - begin);
      });
    });
  });
}

void launch_cpu(const Fill& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    T* out = op.out.data<T>();
    const T value = static_cast<T>(static_cast<Accumulator<T>>(op.value));
    parallel_ranges(op.out.size(), grain, [=](std::int64_t begin, std::int64_t end) {
      std::fill(out + begin, out + end, value);
    });
  });
}

}  // namespace sluice
