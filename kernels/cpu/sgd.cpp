#include "kernels/sgd.h"

#include <cmath>

#include "kernels/base/fused.h"
#include "kernels/cpu/master_weight.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

template <class A, class W>
void update(A* master, A* velocity, const A* grad, W* working, std::int64_t count, A momentum,
            A scale, A keep, A rate) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    velocity[i] = fused(momentum, velocity[i], scale * grad[i]);
    const A w = fused(master[i], keep, -rate * velocity[i]);
    master[i] = w;
    if (working != nullptr) store_working(working[i], w);
  }
}

}  // namespace

void launch_cpu(const Sgd& op) {
  dispatch_master(op.master.dtype, op.working, [&]<class A, class W>() {
    A* master = op.master.data<A>();
    A* velocity = op.velocity.data<A>();
    const A* grad = op.grad.data<A>();
    W* working = op.working ? op.working.data<W>() : nullptr;
    const A momentum = static_cast<A>(op.momentum);
    const A scale = op.gradient_scale ? *op.gradient_scale.data<A>() : A(1);
    if (!std::isfinite(scale)) return;
    const A keep = static_cast<A>(fused(-op.rate, op.weight_decay, 1.0));
    const A rate = static_cast<A>(op.rate);
    parallel_ranges(op.master.size(), std::int64_t{1} << 16,
                    [=](std::int64_t begin, std::int64_t end) {
                      update(master + begin, velocity + begin, grad + begin,
                             working != nullptr ? working + begin : nullptr, end - begin, momentum,
                             scale, keep, rate);
                    });
  });
}

}  // namespace sluice
