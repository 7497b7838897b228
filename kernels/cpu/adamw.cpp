#include "kernels/adamw.h"

#include <cmath>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/master_weight.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

/// One pass over memory: everything an element needs is read once and written once.
template <class A, class W>
void update(const AdamW& op) {
  A* master = op.master.data<A>();
  A* first = op.first_moment.data<A>();
  A* second = op.second_moment.data<A>();
  const A* grad = op.grad.data<A>();
  W* working = op.working ? op.working.data<W>() : nullptr;
  const A beta1 = static_cast<A>(op.beta1);
  const A beta2 = static_cast<A>(op.beta2);
  const A scale = static_cast<A>(op.gradient_scale);
  const A epsilon = static_cast<A>(op.epsilon);
  const A keep = static_cast<A>(1 - op.rate * op.weight_decay);
  const A rate = static_cast<A>(op.rate / op.correction1);
  const A root_correction = static_cast<A>(1 / std::sqrt(op.correction2));
  parallel_ranges(
      op.master.size(), std::int64_t{1} << 16, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) {
          const A g = grad[i] * scale;
          const A m = beta1 * first[i] + (A(1) - beta1) * g;
          const A v = beta2 * second[i] + (A(1) - beta2) * g * g;
          first[i] = m;
          second[i] = v;
          const A w = master[i] * keep - rate * m / (std::sqrt(v) * root_correction + epsilon);
          master[i] = w;
          if (working != nullptr) working[i] = working_weight<W>(w);
        }
      });
}

}  // namespace

void launch_cpu(const AdamW& op) {
  dispatch_master(op.master.dtype, op.working, [&]<class A, class W>() { update<A, W>(op); });
}

}  // namespace sluice
