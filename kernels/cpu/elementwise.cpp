#include "kernels/elementwise.h"

#include <algorithm>

#include "kernels/base/dtype.h"
#include "kernels/cpu/master_weight.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t grain = 1 << 15;
constexpr std::int64_t costly_grain = 1 << 14;

// The loops are functions of their own: the compiler treats pointers captured by a lambda as memory
// and would use gather instructions.

template <class T, class F, class... In>
void map_piece(F f, std::int64_t count, T* out, const In*... in) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i)
    store(out[i], f(static_cast<Accumulator<T>>(in[i])...));
}

/// Computes out[i] = f(in[i]...) in the accumulator's type, `piece` elements per task.
template <std::int64_t piece = grain, class T, class F, class... In>
void map(std::int64_t count, F f, T* out, const In*... in) {
  parallel_ranges(count, piece, [=](std::int64_t begin, std::int64_t end) {
    map_piece(f, end - begin, out + begin, (in + begin)...);
  });
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

template <class A, class T>
void add_to_row(A* to, const T* row, std::int64_t count) {
#pragma omp simd
  for (std::int64_t j = 0; j < count; ++j)
    to[j] += static_cast<A>(row[j]);
}

constexpr auto plus = [](auto a, auto b) { return a + b; };
constexpr auto relu = []<class A>(A x) { return x < 0 ? A(0) : x; };  // NaN stays NaN
constexpr auto relu_gradient = []<class A>(A grad, A out) { return out > 0 ? grad : A(0); };

constexpr double root_two_over_pi = 0.79788456080286535588;
constexpr double cubic = 0.044715;

constexpr auto gelu = []<class A>(A x) {
  const A inner = A(root_two_over_pi) * (x + A(cubic) * x * x * x);
  return A(0.5) * x * (A(1) + fast_tanh(inner));
};

constexpr auto gelu_gradient = []<class A>(A grad, A x) {
  const A inner = A(root_two_over_pi) * (x + A(cubic) * x * x * x);
  const A slope = A(root_two_over_pi) * (A(1) + A(3 * cubic) * x * x);
  const A t = fast_tanh(inner);
  const A derivative = A(0.5) * (A(1) + t) + A(0.5) * x * (A(1) - t * t) * slope;
  return grad * derivative;
};

constexpr double half_root = 0.70710678118654752440;     // 1 / sqrt(2)
constexpr double density_at_0 = 0.39894228040143267794;  // 1 / sqrt(2 pi)

constexpr auto exact_gelu = []<class A>(A x) {
  return A(0.5) * x * (A(1) + fast_erf(x * A(half_root)));
};

/// The derivative is the normal distribution's Phi(x) + x * phi(x).
constexpr auto exact_gelu_gradient = []<class A>(A grad, A x) {
  const A phi = A(density_at_0) * fast_exp(A(-0.5) * x * x);
  return grad * (A(0.5) * (A(1) + fast_erf(x * A(half_root))) + x * phi);
};

}  // namespace

void launch_cpu(const Add& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    map(op.out.size(), plus, op.out.data<T>(), op.a.data<T>(), op.b.data<T>());
  });
}

void launch_cpu(const AddRow& op) {
  constexpr std::int64_t rows_per_task = 16;
  dispatch_floating(op.row.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    A* const matrix = op.matrix.data<A>();
    const T* const row = op.row.data<T>();
    const std::int64_t columns = op.matrix.dim(1), stride = op.matrix.stride(0);
    parallel_ranges(op.matrix.dim(0), rows_per_task, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        add_to_row(matrix + i * stride, row, columns);
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

void launch_cpu(const Scale& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const T* in = op.in.data<T>();
    T* out = op.out.data<T>();
    const A factor = static_cast<A>(op.factor);
    parallel_ranges(op.out.size(), grain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i)
        store(out[i], factor * static_cast<A>(in[i]));
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

void launch_cpu(const ReluForward& op) {
  dispatch_floating(op.in.dtype,
                    [&]<class T>() { map(op.in.size(), relu, op.out.data<T>(), op.in.data<T>()); });
}

void launch_cpu(const ReluBackward& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    map(op.out.size(), relu_gradient, op.grad_in.data<T>(), op.grad_out.data<T>(),
        op.out.data<T>());
  });
}

void launch_cpu(const GeluForward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    if (op.exact)
      map<costly_grain>(op.in.size(), exact_gelu, op.out.data<T>(), op.in.data<T>());
    else
      map<costly_grain>(op.in.size(), gelu, op.out.data<T>(), op.in.data<T>());
  });
}

void launch_cpu(const GeluBackward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    T* const grad_in = op.grad_in.data<T>();
    const T *const grad_out = op.grad_out.data<T>(), *const in = op.in.data<T>();
    if (op.exact)
      map<costly_grain>(op.in.size(), exact_gelu_gradient, grad_in, grad_out, in);
    else
      map<costly_grain>(op.in.size(), gelu_gradient, grad_in, grad_out, in);
  });
}

}  // namespace sluice
