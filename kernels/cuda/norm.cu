#include "kernels/norm.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

/// One warp per row.
constexpr int row_warps = 4;
constexpr int row_threads = row_warps * warp_size;
/// Elements of a row that a lane keeps in registers at most: rows of up to 2048 are read only once.
constexpr int kept_elements = 64;
/// Rows of up to 1024 need half of these registers, so that more warps wait for memory at one time.
constexpr int few_elements = 32;

template <class T>
struct Arrays {
  T* out;
  T* sum;
  float* mean;
  float* rstd;
  const T* in;
  const T* branch;  ///< null if nothing is added
  const T* weight;
  const T* bias;  ///< null if there is none
};

// `centred`: LayerNorm, which subtracts the mean; else RMSNorm, which has no `mean` and no `bias`.

__device__ __forceinline__ std::int64_t row_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * row_warps + threadIdx.x / warp_size;
}

/// The row stays in registers, so that mean and variance are two exact passes without a second read
/// from memory. All loads come before the first store, behind which the compiler may not move them.
template <class T, int N, int kept, bool centred>
__global__ void __launch_bounds__(row_threads)
    normalize(Arrays<T> a, std::int64_t rows, std::int64_t width, float epsilon) {
  constexpr int packs = kept / N;
  const std::int64_t row = row_of_warp();
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const auto column = [lane](int p) { return (p * warp_size + lane) * N; };
  const std::int64_t start = row * width;
  Packed<T, N> in[packs], branch[packs];
#pragma unroll
  for (int p = 0; p < packs; ++p)
    if (column(p) < width) in[p] = load_packed<N>(a.in + start + column(p));
  if (a.branch != nullptr) {
#pragma unroll
    for (int p = 0; p < packs; ++p)
      if (column(p) < width) branch[p] = load_packed<N>(a.branch + start + column(p));
  }
  float x[packs][N];
  float mean = 0;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (column(p) >= width) continue;
#pragma unroll
    for (int i = 0; i < N; ++i)
      x[p][i] = in[p][i];
    if (a.branch != nullptr) {
      // The norm uses the sum as it was rounded and stored.
#pragma unroll
      for (int i = 0; i < N; ++i)
        x[p][i] = to_float(from_float<T>(x[p][i] + branch[p][i]));
      store_floats(a.sum + start + column(p), x[p]);
    }
#pragma unroll
    for (int i = 0; i < N && centred; ++i)
      mean += x[p][i];
  }
  if constexpr (centred) mean = warp_sum(mean) / static_cast<float>(width);
  float variance = 0;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (column(p) >= width) continue;
#pragma unroll
    for (int i = 0; i < N; ++i)
      variance += (x[p][i] - mean) * (x[p][i] - mean);
  }
  variance = warp_sum(variance) / static_cast<float>(width);
  const float rstd = reciprocal_root(variance + epsilon);
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (column(p) >= width) continue;
    float weight[N], bias[N] = {};
    load_floats(weight, a.weight + column(p));
    if (centred && a.bias != nullptr) load_floats(bias, a.bias + column(p));
#pragma unroll
    for (int i = 0; i < N; ++i)
      x[p][i] = (x[p][i] - mean) * rstd * weight[i] + bias[i];
    store_floats(a.out + start + column(p), x[p]);
  }
  if (lane == 0) {
    if constexpr (centred) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// Handles rows of any width and alignment; reads them three times.
template <class T, bool centred>
__global__ void __launch_bounds__(row_threads)
    normalize_any(Arrays<T> a, std::int64_t rows, std::int64_t width, float epsilon) {
  const std::int64_t row = row_of_warp();
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const std::int64_t start = row * width;
  const T* in = a.in + start;
  if (a.branch != nullptr) {
    for (std::int64_t j = lane; j < width; j += warp_size)
      a.sum[start + j] = from_float<T>(to_float(in[j]) + to_float(a.branch[start + j]));
    in = a.sum + start;  // each lane reads only what it wrote
  }
  float mean = 0;
  if constexpr (centred) {
    for (std::int64_t j = lane; j < width; j += warp_size)
      mean += to_float(in[j]);
    mean = warp_sum(mean) / static_cast<float>(width);
  }
  float variance = 0;
  for (std::int64_t j = lane; j < width; j += warp_size) {
    const float deviation = to_float(in[j]) - mean;
    variance += deviation * deviation;
  }
  variance = warp_sum(variance) / static_cast<float>(width);
  const float rstd = reciprocal_root(variance + epsilon);
  for (std::int64_t j = lane; j < width; j += warp_size)
    a.out[start + j] = from_float<T>((to_float(in[j]) - mean) * rstd * to_float(a.weight[j]) +
                                     (centred && a.bias != nullptr ? to_float(a.bias[j]) : 0.0f));
  if (lane == 0) {
    if constexpr (centred) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

}  // namespace

void launch_cuda(const NormForward& op, Stream stream) {
  const std::int64_t rows = op.in.rows();
  const std::int64_t width = op.in.dim(-1);
  const auto with = [&]<class T, bool centred>() {
    const Arrays<T> arrays{.out = op.out.data<T>(),
                           .sum = op.branch ? op.sum.data<T>() : nullptr,
                           .mean = centred ? op.mean.data<float>() : nullptr,
                           .rstd = op.rstd.data<float>(),
                           .in = op.in.data<T>(),
                           .branch = op.branch ? op.branch.data<T>() : nullptr,
                           .weight = op.weight.data<T>(),
                           .bias = op.bias ? op.bias.data<T>() : nullptr};
    constexpr int packed = wide<T>;
    const bool kept = width % packed == 0 && width <= kept_elements * warp_size &&
                      aligned(16, {op.out, op.sum, op.in, op.branch, op.weight, op.bias});
    const bool few = width <= few_elements * warp_size;
    launch(!kept ? normalize_any<T, centred>
           : few ? normalize<T, packed, few_elements, centred>
                 : normalize<T, packed, kept_elements, centred>,
           {pieces(rows, row_warps)}, {row_threads}, 0, stream, arrays, rows, width,
           static_cast<float>(op.epsilon));
  };
  dispatch(op.in.dtype, [&]<class T>() {
    if (op.mean) return with.template operator()<T, true>();
    with.template operator()<T, false>();
  });
}

}  // namespace sluice
