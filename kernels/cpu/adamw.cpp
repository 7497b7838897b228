#include "kernels/adamw.h"

#include <cmath>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/master_weight.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

/// The numbers of one update, in the master's type.
template <class A>
struct Coefficients {
  A beta1, beta2, scale, epsilon, keep, rate, root_correction;

  Coefficients(const AdamW& op, A gradient_scale)
      : beta1(static_cast<A>(op.beta1)),
        beta2(static_cast<A>(op.beta2)),
        scale(gradient_scale),
        epsilon(static_cast<A>(op.epsilon)),
        keep(static_cast<A>(1 - op.rate * op.weight_decay)),
        rate(static_cast<A>(op.rate / op.correction1)),
        root_correction(static_cast<A>(1 / std::sqrt(op.correction2))) {}
};

/// One pass over memory: everything an element needs is read once and written once. `working` is
/// null where the master is what the model computes with.
template <class A, class W>
void update(A* master, A* first, A* second, const A* grad, W* working, std::int64_t count,
            const Coefficients<A> c) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const A g = grad[i] * c.scale;
    const A m = c.beta1 * first[i] + (A(1) - c.beta1) * g;
    const A v = c.beta2 * second[i] + (A(1) - c.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    const A w = master[i] * c.keep - c.rate * m / (std::sqrt(v) * c.root_correction + c.epsilon);
    master[i] = w;
    if (working != nullptr) store_working(working[i], w);
  }
}

}  // namespace

void launch_cpu(const AdamW& op) {
  dispatch_master(op.master.dtype, op.working, [&]<class A, class W>() {
    A* master = op.master.data<A>();
    A* first = op.first_moment.data<A>();
    A* second = op.second_moment.data<A>();
    const A* grad = op.grad.data<A>();
    W* working = op.working ? op.working.data<W>() : nullptr;
    const A scale = op.gradient_scale ? *op.gradient_scale.data<A>() : A(1);
    if (!std::isfinite(scale)) return;
    const Coefficients<A> coefficients(op, scale);
    parallel_ranges(
        op.master.size(), std::int64_t{1} << 16, [=](std::int64_t begin, std::int64_t end) {
          update(master + begin, first + begin, second + begin, grad + begin,
                 working != nullptr ? working + begin : nullptr, end - begin, coefficients);
        });
  });
}

}  // namespace sluice
