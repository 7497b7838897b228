#include "kernels/adamw.h"

#include <cmath>

#include "kernels/base/dispatch.h"
#include "kernels/base/split_master.h"
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

/// Where master weights lie: in an array of their own, with the working weights derived from them
/// (null where the master is what the model computes with), or split over two.
template <class A, class W>
struct WholeMaster {
  A* master;
  W* working;

  A load(std::int64_t i) const { return master[i]; }
  void store(std::int64_t i, A value) const {
    master[i] = value;
    if (working != nullptr) store_working(working[i], value);
  }
  WholeMaster from(std::int64_t i) const {
    return {master + i, working != nullptr ? working + i : nullptr};
  }
};
struct HalvedMaster {
  BFloat16* working;
  std::int16_t* remainder;

  float load(std::int64_t i) const { return SplitMaster::join(working[i], remainder[i]); }
  void store(std::int64_t i, float value) const {
    const SplitMaster split(value);
    working[i].bits = split.high.bits;
    remainder[i] = split.low;
  }
  HalvedMaster from(std::int64_t i) const { return {working + i, remainder + i}; }
};

/// One pass over memory: everything an element needs is read once and written once.
template <class A, class Master>
void update(Master weights, A* first, A* second, const A* grad, std::int64_t count,
            const Coefficients<A> c) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const A g = grad[i] * c.scale;
    const A m = c.beta1 * first[i] + (A(1) - c.beta1) * g;
    const A v = c.beta2 * second[i] + (A(1) - c.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    weights.store(
        i, weights.load(i) * c.keep - c.rate * m / (std::sqrt(v) * c.root_correction + c.epsilon));
  }
}

template <class A, class Master>
void update_all(const AdamW& op, Master weights) {
  A* first = op.first_moment.data<A>();
  A* second = op.second_moment.data<A>();
  const A* grad = op.grad.data<A>();
  const A scale = op.gradient_scale ? *op.gradient_scale.data<A>() : A(1);
  if (!std::isfinite(scale)) return;
  const Coefficients<A> coefficients(op, scale);
  parallel_ranges(op.grad.size(), std::int64_t{1} << 16, [=](std::int64_t begin, std::int64_t end) {
    update(weights.from(begin), first + begin, second + begin, grad + begin, end - begin,
           coefficients);
  });
}

}  // namespace

void launch_cpu(const AdamW& op) {
  if (op.remainder)
    return update_all<float>(op, HalvedMaster{.working = op.working.data<BFloat16>(),
                                              .remainder = op.remainder.data<std::int16_t>()});
  dispatch_master(op.master.dtype, op.working, [&]<class A, class W>() {
    update_all<A>(op, WholeMaster<A, W>{.master = op.master.data<A>(),
                                        .working = op.working ? op.working.data<W>() : nullptr});
  });
}

}  // namespace sluice
