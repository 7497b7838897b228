#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/adamw.h"
#include "kernels/base/fused.h"
#include "kernels/base/split_master.h"
#include "kernels/cuda/master_weight.h"
#include "kernels/cuda/pack.h"

namespace sluice::cuda {

/// Coefficients of one AdamW update.
struct AdamWCoefficients {
  float beta1, beta2, epsilon, keep, rate, root_correction;

  explicit AdamWCoefficients(const AdamW& op)
      : beta1(static_cast<float>(op.beta1)),
        beta2(static_cast<float>(op.beta2)),
        epsilon(static_cast<float>(op.epsilon)),
        keep(static_cast<float>(fused(-op.rate, op.weight_decay, 1.0))),
        rate(static_cast<float>(op.rate / op.correction1)),
        root_correction(static_cast<float>(1 / std::sqrt(op.correction2))) {}
};

/// Arrays that an update reads and writes, except the moments.
template <class W>
struct AdamWArrays {
  float* master;            ///< null if the master is split
  W* working;               ///< null if the model computes with the master itself
  std::int16_t* remainder;  ///< null if the master is whole
  const float* grad;
  const BFloat16* narrow_grad;  ///< used instead of grad if not null
  const float* scale;

  explicit AdamWArrays(const AdamW& op)
      : master(op.remainder ? nullptr : op.master.data<float>()),
        working(op.working ? op.working.data<W>() : nullptr),
        remainder(op.remainder ? op.remainder.data<std::int16_t>() : nullptr),
        grad(op.grad.dtype == DType::bf16 ? nullptr : op.grad.data<float>()),
        narrow_grad(op.grad.dtype == DType::bf16 ? op.grad.data<BFloat16>() : nullptr),
        scale(op.gradient_scale ? op.gradient_scale.data<float>() : nullptr) {}

  template <int N>
  __device__ __forceinline__ void load_master(float (&w)[N], std::int64_t first) const {
    if constexpr (std::is_same_v<W, BFloat16>) {
      if (remainder != nullptr) {
        const auto high = load<N>(working + first);
        const auto low = load<N>(remainder + first);
#pragma unroll
        for (int i = 0; i < N; ++i)
          w[i] = SplitMaster::join(high.values[i], low.values[i]);
        return;
      }
    }
    load_floats(w, master + first);
  }

  template <int N>
  __device__ __forceinline__ void store_master(const float (&w)[N], std::int64_t first) const {
    Pack<W, N> narrow;
    if constexpr (std::is_same_v<W, BFloat16>) {
      if (remainder != nullptr) {
        Pack<std::int16_t, N> low;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const SplitMaster split(w[i]);
          narrow.values[i] = split.high;
          low.values[i] = split.low;
        }
        store<N>(working + first, narrow);
        store<N>(remainder + first, low);
        return;
      }
    }
    store_floats(master + first, w);
    if (working == nullptr) return;
#pragma unroll
    for (int i = 0; i < N; ++i)
      narrow.values[i] = working_weight<W>(w[i]);
    store<N>(working + first, narrow);
  }

  template <int N>
  __device__ __forceinline__ void load_grad(float (&g)[N], std::int64_t first) const {
    // All threads take the same branch: cheaper than twice as many kernels (not measured).
    if (narrow_grad != nullptr)
      load_floats(g, narrow_grad + first);
    else
      load_floats(g, grad + first);
  }
};

/// True if the arrays can be accessed four elements at a time.
inline bool in_fours(const AdamW& op) {
  for (const View& view :
       {op.master, op.working, op.remainder, op.grad, op.first_moment, op.second_moment})
    if (!aligned(4 * size_of(view.dtype), {view})) return false;
  return true;
}

}  // namespace sluice::cuda
