#include "kernels/adamw.h"

#include <cmath>
#include <type_traits>

#include "kernels/base/split_master.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/master_weight.h"
#include "kernels/cuda/pack.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 256;

struct Coefficients {
  float beta1, beta2, epsilon, keep, rate, root_correction;
};

template <class W>
struct Arrays {
  float* master;
  float* first;
  float* second;
  const float* grad;
  W* working;               ///< null where the master is what the model computes with
  std::int16_t* remainder;  ///< not null: master is, and working is its other half
  const float* scale;
};

template <class W, int N>
__device__ __forceinline__ void load_master(float (&w)[N], const Arrays<W>& arrays,
                                            std::int64_t first) {
  if constexpr (std::is_same_v<W, BFloat16>) {
    if (arrays.remainder != nullptr) {
      const auto high = load<N>(arrays.working + first);
      const auto low = load<N>(arrays.remainder + first);
#pragma unroll
      for (int i = 0; i < N; ++i)
        w[i] = SplitMaster::join(high.values[i], low.values[i]);
      return;
    }
  }
  load_floats(w, arrays.master + first);
}

template <class W, int N>
__device__ __forceinline__ void store_master(const float (&w)[N], const Arrays<W>& arrays,
                                             std::int64_t first) {
  Pack<W, N> working;
  if constexpr (std::is_same_v<W, BFloat16>) {
    if (arrays.remainder != nullptr) {
      Pack<std::int16_t, N> low;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const SplitMaster split(w[i]);
        working.values[i] = split.high;
        low.values[i] = split.low;
      }
      store<N>(arrays.working + first, working);
      store<N>(arrays.remainder + first, low);
      return;
    }
  }
  store_floats(arrays.master + first, w);
  if (arrays.working == nullptr) return;
#pragma unroll
  for (int i = 0; i < N; ++i)
    working.values[i] = working_weight<W>(w[i]);
  store<N>(arrays.working + first, working);
}

/// N parameters a thread; each array is read once and written once.
template <class W, int N>
__global__ void __launch_bounds__(threads)
    update(Arrays<W> arrays, std::int64_t count, Coefficients c) {
  const float scale = arrays.scale != nullptr ? *arrays.scale : 1.0f;
  if (!(scale - scale == 0)) return;  // not finite: the whole update is skipped
  const auto first = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (first >= count) return;
  float w[N], m[N], v[N], g[N];
  load_master(w, arrays, first);
  load_floats(m, arrays.first + first);
  load_floats(v, arrays.second + first);
  load_floats(g, arrays.grad + first);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    g[i] *= scale;
    m[i] = c.beta1 * m[i] + (1.0f - c.beta1) * g[i];
    v[i] = c.beta2 * v[i] + (1.0f - c.beta2) * g[i] * g[i];
    w[i] = w[i] * c.keep - c.rate * m[i] / (sqrtf(v[i]) * c.root_correction + c.epsilon);
  }
  store_floats(arrays.first + first, m);
  store_floats(arrays.second + first, v);
  store_master(w, arrays, first);
}

}  // namespace

void launch_cuda(const AdamW& op, Stream stream) {
  const std::int64_t count = op.grad.size();
  const Coefficients c{.beta1 = static_cast<float>(op.beta1),
                       .beta2 = static_cast<float>(op.beta2),
                       .epsilon = static_cast<float>(op.epsilon),
                       .keep = static_cast<float>(1 - op.rate * op.weight_decay),
                       .rate = static_cast<float>(op.rate / op.correction1),
                       .root_correction = static_cast<float>(1 / std::sqrt(op.correction2))};
  dispatch_working(op.remainder ? DType::f32 : op.master.dtype, op.working, [&]<class W>() {
    const Arrays<W> arrays{.master = op.remainder ? nullptr : op.master.data<float>(),
                           .first = op.first_moment.data<float>(),
                           .second = op.second_moment.data<float>(),
                           .grad = op.grad.data<float>(),
                           .working = op.working ? op.working.data<W>() : nullptr,
                           .remainder = op.remainder ? op.remainder.data<std::int16_t>() : nullptr,
                           .scale = op.gradient_scale ? op.gradient_scale.data<float>() : nullptr};
    check(!op.remainder || op.working.dtype == DType::bf16,
          "a split master weight has a bf16 working weight");
    const bool packed = count % 4 == 0 &&
                        aligned(16, {op.master, op.first_moment, op.second_moment, op.grad}) &&
                        aligned(8, {op.working, op.remainder});
    const int elements = packed ? 4 : 1;
    launch(packed ? update<W, 4> : update<W, 1>, {pieces(count, threads * elements)}, {threads}, 0,
           stream, arrays, count, c);
  });
}

}  // namespace sluice
