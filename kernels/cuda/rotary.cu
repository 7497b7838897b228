#include "kernels/rotary.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 256;

struct Shared {
  float cosines[RotaryAngles::max_width / 2];
  float sines[RotaryAngles::max_width / 2];
};

/// A block has a row. It computes the angles once for all heads; a thread then rotates N pairs of
/// columns at a time.
template <class T, int N, RotaryPairs pairing>
__global__ void __launch_bounds__(threads)
    rotate(T* rows, unsigned length, std::int64_t columns, int heads, int head_width,
           std::int64_t first_position, bool inverse, const __grid_constant__ RotaryAngles angles) {
  auto& shared = shared_memory<Shared>();
  const int pairs = angles.width / 2;
  const auto position = static_cast<std::uint64_t>(first_position + blockIdx.x % length);
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += static_cast<int>(blockDim.x)) {
    // The upper half of the product, signed: the angle is at most half a turn either way.
    const auto turns =
        static_cast<std::int32_t>((angles.turns[static_cast<std::size_t>(i)] * position) >> 32);
    float sine, cosine;
    sine_cosine_of_turns(turns, sine, cosine);
    shared.cosines[i] = cosine;
    shared.sines[i] = inverse ? -sine : sine;
  }
  __syncthreads();
  T* const row = rows + std::int64_t{blockIdx.x} * columns;
  const int tasks_of_head = pairs / N, tasks = heads * tasks_of_head;
  for (int task = static_cast<int>(threadIdx.x); task < tasks;
       task += static_cast<int>(blockDim.x)) {
    T* const head = row + task / tasks_of_head * head_width;
    const int first = task % tasks_of_head * N;
    const auto turn = [&](int i, float& a, float& b) {
      const float cosine = shared.cosines[first + i], sine = shared.sines[first + i];
      const float rotated = a * cosine - b * sine;
      b = a * sine + b * cosine;
      a = rotated;
    };
    if constexpr (pairing == RotaryPairs::halves || N == 1) {
      constexpr bool halves = pairing == RotaryPairs::halves;
      T* const from = head + (halves ? first : 2 * first);
      T* const partner = from + (halves ? pairs : 1);
      float a[N], b[N];
      load_floats(a, from);
      load_floats(b, partner);
#pragma unroll
      for (int i = 0; i < N; ++i)
        turn(i, a[i], b[i]);
      store_floats(from, a);
      store_floats(partner, b);
    } else {
      float both[2 * N];
      load_floats(both, head + 2 * first);
#pragma unroll
      for (int i = 0; i < N; ++i)
        turn(i, both[2 * i], both[2 * i + 1]);
      store_floats(head + 2 * first, both);
    }
  }
}

}  // namespace

void launch_cuda(const Rotary& op, Stream stream) {
  const RotaryAngles& angles = op.angles;
  const int pairs = angles.width / 2;
  dispatch(op.rows.dtype, [&]<class T>() {
    const auto start = [&]<int N, RotaryPairs pairing>() {
      const unsigned warps = pieces(std::max(op.heads * (pairs / N), pairs), warp_size);
      launch(rotate<T, N, pairing>, {static_cast<unsigned>(op.rows.rows())},
             {std::min<unsigned>(threads, warps * warp_size)}, sizeof(Shared), stream,
             op.rows.data<T>(), static_cast<unsigned>(op.rows.dim(1)), op.rows.dim(2), op.heads,
             op.head_width, op.first_position, op.inverse, angles);
    };
    const auto with = [&]<int N>() {
      if (angles.pairs == RotaryPairs::halves)
        return start.template operator()<N, RotaryPairs::halves>();
      start.template operator()<N, RotaryPairs::interleaved>();
    };
    if (pairs % wide<T> == 0 && op.head_width % wide<T> == 0 && aligned(16, {op.rows}))
      return with.template operator()<wide<T>>();
    with.template operator()<1>();
  });
}

}  // namespace sluice
