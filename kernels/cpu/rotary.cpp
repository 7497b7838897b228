#include "kernels/rotary.h"

#include <cmath>
#include <numbers>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t row_grain = 16;

/// Rotates the pairs of a head: pair i is columns i * step and i * step + distance.
template <class T, class A>
void rotate_head(T* head, const A* cosines, const A* sines, std::int64_t pairs, std::int64_t step,
                 std::int64_t distance) {
#pragma omp simd
  for (std::int64_t i = 0; i < pairs; ++i) {
    T& first = head[i * step];
    T& second = head[i * step + distance];
    const A a = static_cast<A>(first), b = static_cast<A>(second);
    store(first, a * cosines[i] - b * sines[i]);
    store(second, a * sines[i] + b * cosines[i]);
  }
}

template <class T>
void rotate_row(const Rotary& op, std::int64_t row) {
  using A = Accumulator<T>;
  const RotaryAngles& angles = op.angles;
  const auto position = static_cast<std::uint64_t>(op.first_position + row % op.rows.dim(1));
  const std::int64_t pairs = angles.width / 2;
  A cosines[RotaryAngles::max_width / 2], sines[RotaryAngles::max_width / 2];
  for (std::int64_t i = 0; i < pairs; ++i) {
    // Signed, so that the angle is at most half a turn either way.
    const auto turns =
        static_cast<std::int64_t>(angles.turns[static_cast<std::size_t>(i)] * position);
    const double angle = std::ldexp(static_cast<double>(turns), -63) * std::numbers::pi;
    cosines[i] = static_cast<A>(std::cos(angle));
    sines[i] = static_cast<A>(op.inverse ? -std::sin(angle) : std::sin(angle));
  }
  T* const start = op.rows.data<T>() + row * op.rows.dim(2);
  for (std::int64_t head = 0; head < op.heads; ++head) {
    T* const at = start + head * op.head_width;
    if (angles.pairs == RotaryPairs::halves)
      rotate_head(at, cosines, sines, pairs, 1, pairs);
    else
      rotate_head(at, cosines, sines, pairs, 2, 1);
  }
}

}  // namespace

void launch_cpu(const Rotary& op) {
  dispatch_floating(op.rows.dtype, [&]<class T>() {
    parallel_ranges(op.rows.rows(), row_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        rotate_row<T>(op, row);
    });
  });
}

}  // namespace sluice
