#include "kernels/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/fused.h"
#include "kernels/cpu/master_weight.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t grain = std::int64_t{1} << 16;

template <class A>
A scale_of(const View& gradient_scale) {
  return gradient_scale ? *gradient_scale.data<A>() : A(1);
}

// The loop is a function of its own: the compiler takes pointers that a lambda captured for memory,
// and would not vectorize it.
template <class A, class G, class D>
void move_range(D* direction, A* moment, const G* grad, A keep, A take, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const A part = take * static_cast<A>(grad[i]);
    const A m = fused(keep, moment[i], part);
    moment[i] = m;
    store(direction[i], static_cast<Accumulator<D>>(fused(keep, m, part)));
  }
}

template <class A, class G, class D>
void move_momentum(const MuonMomentum& op) {
  const A scale = scale_of<A>(op.gradient_scale);
  if (!std::isfinite(scale)) return;
  D* direction = op.direction.data<D>();
  A* moment = op.first_moment.data<A>();
  const G* grad = op.grad.data<G>();
  const A keep = static_cast<A>(op.momentum);
  const A take = static_cast<A>(1 - op.momentum) * scale;
  parallel_ranges(op.first_moment.size(), grain, [=](std::int64_t begin, std::int64_t end) {
    move_range(direction + begin, moment + begin, grad + begin, keep, take, end - begin);
  });
}

template <class A, class D, class Master>
void update(const MuonUpdate& op, const Master& weights) {
  if (!std::isfinite(scale_of<A>(op.gradient_scale))) return;
  const D* direction = op.direction.data<D>();
  const A keep = static_cast<A>(fused(-op.rate, op.weight_decay, 1.0));
  const A step = static_cast<A>(-op.step);
  parallel_ranges(op.direction.size(), grain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i)
      weights.store(i, fused(weights.load(i), keep, step * static_cast<A>(direction[i])));
  });
}

/// Calls body.operator()<D>() with the type of the direction, where weights or moments are A.
template <class A, class Body>
void dispatch_direction(DType direction, Body&& body) {
  if constexpr (std::is_same_v<A, double>)
    return body.template operator()<double>();
  else if (direction == DType::bf16)
    return body.template operator()<BFloat16>();
  else
    return body.template operator()<float>();
}

}  // namespace

void launch_cpu(const MuonMomentum& op) {
  if (op.first_moment.dtype == DType::f64) return move_momentum<double, double, double>(op);
  dispatch_direction<float>(op.direction.dtype, [&]<class D>() {
    op.grad.dtype == DType::bf16 ? move_momentum<float, BFloat16, D>(op)
                                 : move_momentum<float, float, D>(op);
  });
}

void launch_cpu(const DivideByNorm& op) {
  double squares = 0;
  for (std::int64_t i = 0; i < op.partial.size(); ++i)
    squares += op.partial.data<double>()[i];
  const double factor = 1 / std::max(std::sqrt(squares), op.epsilon);
  dispatch_floating(op.matrix.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    T* matrix = op.matrix.data<T>();
    parallel_ranges(op.matrix.size(), grain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i)
        store(matrix[i], static_cast<A>(matrix[i]) * static_cast<A>(factor));
    });
  });
}

void launch_cpu(const SymmetricSum& op) {
  dispatch_floating(op.out.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    constexpr std::int64_t tile = 64;  // a tile's mirror image stays in the cache
    const std::int64_t n = op.out.dim(0);
    T* out = op.out.data<T>();
    const T* added = op.added ? op.added.data<T>() : nullptr;
    const A factor = static_cast<A>(op.factor), added_factor = static_cast<A>(op.added_factor);
    const A identity = static_cast<A>(op.identity);
    parallel_ranges(n, tile, [=](std::int64_t first, std::int64_t end) {
      for (std::int64_t left = 0; left < end; left += tile)
        for (std::int64_t i = first; i < end; ++i)
          for (std::int64_t j = left; j < std::min(left + tile, i + 1); ++j) {
            A value = factor * static_cast<A>(out[i * n + j]);
            if (added != nullptr)
              value = fused(added_factor, static_cast<A>(added[i * n + j]), value);
            if (i == j) value += identity;
            store(out[i * n + j], value);
            out[j * n + i] = out[i * n + j];
          }
    });
  });
}

void launch_cpu(const MuonUpdate& op) {
  if (op.remainder) {
    const HalvedMaster weights{.working = op.working.data<BFloat16>(),
                               .remainder = op.remainder.data<std::int16_t>()};
    return dispatch_direction<float>(op.direction.dtype,
                                     [&]<class D>() { update<float, D>(op, weights); });
  }
  dispatch_master(op.master.dtype, op.working, [&]<class A, class W>() {
    const WholeMaster<A, W> weights{.master = op.master.data<A>(),
                                    .working = op.working ? op.working.data<W>() : nullptr};
    dispatch_direction<A>(op.direction.dtype, [&]<class D>() { update<A, D>(op, weights); });
  });
}

}  // namespace sluice
