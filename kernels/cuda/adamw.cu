#include "kernels/adamw.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/base/dynamic_map.h"
#include "kernels/base/fused.h"
#include "kernels/base/half.h"
#include "kernels/base/stochastic_rounding.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/master_weight.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int warps = 8;
constexpr int threads = warps * warp_size;

/// Coefficients of one AdamW update.
struct Coefficients {
  float beta1, beta2, epsilon, keep, rate, root_correction;

  explicit Coefficients(const AdamW& op)
      : beta1(static_cast<float>(op.beta1)),
        beta2(static_cast<float>(op.beta2)),
        epsilon(static_cast<float>(op.epsilon)),
        keep(static_cast<float>(fused(-op.rate, op.weight_decay, 1.0))),
        rate(static_cast<float>(op.rate / op.correction1)),
        root_correction(static_cast<float>(1 / std::sqrt(op.correction2))) {}
};

/// Arrays that an update reads and writes, except the moments.
template <class W>
struct Arrays {
  float* master;            ///< null if the master is split
  W* working;               ///< null if the model computes with the master itself
  std::int16_t* remainder;  ///< null if the master is whole
  const float* grad;
  const BFloat16* narrow_grad;  ///< used instead of grad if not null
  const float* scale;

  Arrays() = default;
  explicit Arrays(const AdamW& op)
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

/// Only bf16 needs random bits, and uses the lower half of them.
template <class T, int N>
__device__ __forceinline__ void store_moment(T* to, const float (&values)[N],
                                             const std::uint32_t (&random)[N]) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    Pack<BFloat16, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i)
      pack.values[i] = round_stochastically(values[i], static_cast<std::uint16_t>(random[i]));
    store<N>(to, pack);
  } else {
    store_floats(to, values);
  }
}

/// An UpdatePart holds the arrays that the update of one run of parameters reads and writes.
/// `element` is the position of the first parameter in the parameter space.
template <class W, class M, class V>
struct UpdatePart {
  Arrays<W> arrays;
  M* first_moment;
  V* second_moment;
  std::int64_t count;
  std::int64_t element;
  float keep;
};

/// Updates N parameters per thread; reads and writes each array once.
template <class W, class M, class V, int N>
__global__ void __launch_bounds__(threads)
    update(const __grid_constant__ Parts<UpdatePart<W, M, V>> parts, Coefficients c,
           RoundingBits random_bits) {
  const auto [part, block] = parts.of_block(blockIdx.x);
  const Arrays<W>& arrays = part.arrays;
  const float scale = arrays.scale != nullptr ? *arrays.scale : 1.0f;
  if (!(scale - scale == 0)) return;  // not finite: the whole update is skipped
  const auto first = (static_cast<std::int64_t>(block) * threads + threadIdx.x) * N;
  if (first >= part.count) return;
  float w[N], m[N], v[N], g[N];
  arrays.load_master(w, first);
  load_floats(m, part.first_moment + first);
  load_floats(v, part.second_moment + first);
  arrays.load_grad(g, first);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    g[i] *= scale;
    m[i] = fused(c.beta1, m[i], (1.0f - c.beta1) * g[i]);
    v[i] = fused(c.beta2, v[i], (1.0f - c.beta2) * g[i] * g[i]);
    w[i] =
        fused(w[i], part.keep, -c.rate * m[i] / fused(sqrtf(v[i]), c.root_correction, c.epsilon));
  }
  std::uint32_t random[N] = {};
  if constexpr (std::is_same_v<M, BFloat16>) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      random[i] = random_bits(part.element + first + i);
  }
  store_moment(part.first_moment + first, m, random);
#pragma unroll
  for (int i = 0; i < N; ++i)
    random[i] >>= 16;
  store_moment(part.second_moment + first, v, random);
  arrays.store_master(w, first);
}

/// u8 moments and the scales of their blocks.
struct CodedMoments {
  std::uint8_t* first;
  std::uint8_t* second;
  float* first_scale;
  float* second_scale;
};

/// Layout of blocks in the arrays.
struct Rows {
  std::int64_t length;
  unsigned row_blocks, blocks;
};

struct Shared {
  float first_values[256], second_values[256];  ///< values of the codes
};

__device__ __forceinline__ std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
}
__device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  return a > b ? a : b;
}

/// Returns the float whose magnitude's bits are the largest in the warp. Bits are ordered as the
/// values are, with infinities and NaN above all others.
__device__ __forceinline__ float warp_top(std::uint32_t bits) {
  return std::bit_cast<float>(
      warp_fold(bits, [](std::uint32_t a, std::uint32_t b) { return larger(a, b); }));
}

/// Factor that scales a block's values to at most 1. 0 if the block's scale is 0, so small that its
/// inverse would overflow, or not finite.
__device__ __forceinline__ float inverse_of(float scale) {
  return scale >= FLT_MIN ? 1.0f / scale : 0.0f;
}

/// One warp per block of 256 elements, in groups of N neighbours per lane. The new moments stay in
/// registers until their scale is known.
template <class W, int N>
__global__ void __launch_bounds__(threads)
    update_coded(Arrays<W> arrays, CodedMoments moments, Rows rows, Coefficients c,
                 RoundingBits random_bits, std::int64_t element) {
  constexpr int stride = warp_size * N;
  constexpr int groups = static_cast<int>(AdamW::block) / stride;
  const float scale = arrays.scale != nullptr ? *arrays.scale : 1.0f;
  if (!(scale - scale == 0)) return;
  auto& shared = shared_memory<Shared>();
  for (unsigned code = threadIdx.x; code < 256; code += threads) {
    shared.first_values[code] = SignedMap::decode(static_cast<std::uint8_t>(code));
    shared.second_values[code] = PositiveMap::decode(static_cast<std::uint8_t>(code));
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  const unsigned step = gridDim.x * warps;
  for (unsigned block = blockIdx.x * warps + threadIdx.x / warp_size; block < rows.blocks;
       block += step) {
    const std::int64_t in_row = static_cast<std::int64_t>(block % rows.row_blocks) * AdamW::block;
    const std::int64_t start = block / rows.row_blocks * rows.length + in_row;
    const std::int64_t rest = rows.length - in_row;  // a lane has all of its elements or none
    const float old_first = moments.first_scale[block], old_second = moments.second_scale[block];
    float m[groups][N], roots[groups][N];
    std::uint32_t first_top = 0, second_top = 0;
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      const int offset = group * stride + lane * N;
      if (offset >= rest) continue;
      const std::int64_t at = start + offset;
      const auto first_codes = load<N>(moments.first + at);
      const auto second_codes = load<N>(moments.second + at);
      float w[N], g[N];
      arrays.load_master(w, at);
      arrays.load_grad(g, at);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        g[i] *= scale;
        const float old_root = shared.second_values[second_codes.values[i]] * old_second;
        m[group][i] = fused(c.beta1, shared.first_values[first_codes.values[i]] * old_first,
                            (1.0f - c.beta1) * g[i]);
        roots[group][i] =
            sqrtf(fused(c.beta2, old_root * old_root, (1.0f - c.beta2) * g[i] * g[i]));
        w[i] = fused(w[i], c.keep,
                     -c.rate * m[group][i] / fused(roots[group][i], c.root_correction, c.epsilon));
        first_top = larger(first_top, magnitude_bits(m[group][i]));
        second_top = larger(second_top, magnitude_bits(roots[group][i]));
      }
      arrays.store_master(w, at);
    }
    const float first_scale = warp_top(first_top), second_scale = warp_top(second_top);
    if (lane == 0) {
      moments.first_scale[block] = first_scale;
      moments.second_scale[block] = second_scale;
    }
    const float first_inverse = inverse_of(first_scale), second_inverse = inverse_of(second_scale);
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      const int offset = group * stride + lane * N;
      if (offset >= rest) continue;
      const std::int64_t at = start + offset;
      Pack<std::uint8_t, N> first_codes, second_codes;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const std::uint32_t random = random_bits(element + at + i);
        first_codes.values[i] = static_cast<std::uint8_t>(
            SignedMap::encode(m[group][i] * first_inverse, random & 0xFFFFu));
        second_codes.values[i] = static_cast<std::uint8_t>(
            PositiveMap::encode(roots[group][i] * second_inverse, random >> 16));
      }
      store<N>(moments.first + at, first_codes);
      store<N>(moments.second + at, second_codes);
    }
  }
}

/// True if the arrays can be accessed four elements at a time.
bool in_fours(const AdamW& op) {
  for (const View& view :
       {op.master, op.working, op.remainder, op.grad, op.first_moment, op.second_moment})
    if (!aligned(4 * size_of(view.dtype), {view})) return false;
  return true;
}

template <class W, class M, class V, int N>
void launch_plain(std::span<const AdamW> updates, Stream stream) {
  Parts<UpdatePart<W, M, V>> parts;
  const auto flush = [&] {
    launch(update<W, M, V, N>, {parts.blocks()}, {threads}, 0, stream, parts,
           Coefficients(updates.front()), RoundingBits(updates.front().rounding_key));
    parts = {};
  };
  for (const AdamW& op : updates) {
    if (parts.full()) flush();
    parts.add({Arrays<W>(op), op.first_moment.data<M>(), op.second_moment.data<V>(), op.grad.size(),
               op.first_element, Coefficients(op).keep},
              pieces(op.grad.size(), threads * N));
  }
  flush();
}

template <class W>
void launch_coded(const AdamW& op, const Arrays<W>& arrays, Stream stream) {
  check(op.first_scale.size() < std::int64_t{1} << 31, "an AdamW update has too many blocks");
  const CodedMoments moments{op.first_moment.data<std::uint8_t>(),
                             op.second_moment.data<std::uint8_t>(), op.first_scale.data<float>(),
                             op.second_scale.data<float>()};
  const Rows rows{op.row_length, pieces(op.row_length, AdamW::block),
                  static_cast<unsigned>(op.first_scale.size())};
  // Launches as many blocks as can be resident, so that each fills its tables once.
  constexpr unsigned resident = 2048 / threads;
  const unsigned most = static_cast<unsigned>(queue_of(stream).multiprocessors) * resident;
  const bool packed = op.row_length % 4 == 0 && in_fours(op);
  launch(packed ? update_coded<W, 4> : update_coded<W, 1>,
         {std::min(pieces(op.first_scale.size(), warps), most)}, {threads}, sizeof(Shared), stream,
         arrays, moments, rows, Coefficients(op), RoundingBits(op.rounding_key), op.first_element);
}

/// Two runs of parameters with an equal choice are updated by the same kernel.
struct KernelChoice {
  DType master, working, first_moment, second_moment;
  bool split, fours;

  explicit KernelChoice(const AdamW& op)
      : master(op.master.dtype),
        working(op.working ? op.working.dtype : op.master.dtype),
        first_moment(op.first_moment.dtype),
        second_moment(op.second_moment.dtype),
        split(op.remainder),
        fours(op.grad.size() % 4 == 0 && in_fours(op)) {}
  bool operator==(const KernelChoice&) const = default;
};

/// Launches updates of one kernel.
void launch_alike(std::span<const AdamW> updates, bool fours, Stream stream) {
  const AdamW& first = updates.front();
  for (const AdamW& op : updates)
    check_layout(op);
  dispatch_working(first.remainder ? DType::f32 : first.master.dtype, first.working,
                   [&]<class W>() {
                     const auto plain = [&]<class M, class V>() {
                       if (fours)
                         launch_plain<W, M, V, 4>(updates, stream);
                       else
                         launch_plain<W, M, V, 1>(updates, stream);
                     };
                     if (first.first_moment.dtype == DType::u8) {
                       for (const AdamW& op : updates)
                         launch_coded(op, Arrays<W>(op), stream);
                     } else if (first.first_moment.dtype == DType::f32) {
                       plain.template operator()<float, float>();
                     } else if (first.second_moment.dtype == DType::f32) {
                       plain.template operator()<BFloat16, float>();
                     } else {
                       plain.template operator()<BFloat16, BFloat16>();
                     }
                   });
}

}  // namespace

void launch_cuda(const AdamW& op, Stream stream) {
  launch_cuda(AdamWBatch{{&op, 1}}, stream);
}

void launch_cuda(const AdamWBatch& op, Stream stream) {
  std::vector<AdamW> rest(op.updates.begin(), op.updates.end());
  while (!rest.empty()) {
    // The same kernel updates the first run and all others up to `others`.
    const KernelChoice choice(rest.front());
    const auto others = std::stable_partition(rest.begin(), rest.end(), [&](const AdamW& other) {
      return KernelChoice(other) == choice;
    });
    launch_alike({rest.begin(), others}, choice.fours, stream);
    rest.erase(rest.begin(), others);
  }
}

}  // namespace sluice
