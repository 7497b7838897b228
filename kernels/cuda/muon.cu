#include "kernels/muon.h"

#include <type_traits>

#include "kernels/base/fused.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/master_weight.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 256;
constexpr int warps = threads / warp_size;
constexpr int each = 4;  ///< elements of a thread, `threads` apart

/// True if the gradient scale is not finite; the update is then skipped.
__device__ __forceinline__ bool skips(const float* scale_at) {
  return scale_at != nullptr && !(*scale_at - *scale_at == 0);
}

/// Calls body(i) for the elements of this thread.
template <class Body>
__device__ __forceinline__ void for_each_element(std::int64_t count, Body&& body) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * threads * each + threadIdx.x;
#pragma unroll
  for (int k = 0; k < each; ++k)
    if (const std::int64_t i = first + k * threads; i < count) body(i);
}

dim3 grid_for(std::int64_t count) {
  return {pieces(count, threads * each)};
}

template <class G, class D>
__global__ void __launch_bounds__(threads)
    move_momentum(D* direction, float* moment, const G* grad, const float* scale_at,
                  std::int64_t count, float keep, float rest) {
  if (skips(scale_at)) return;
  const float take = scale_at != nullptr ? rest * *scale_at : rest;
  for_each_element(count, [&](std::int64_t i) {
    const float part = take * to_float(grad[i]);
    const float m = fused(keep, moment[i], part);
    moment[i] = m;
    direction[i] = from_float<D>(fused(keep, m, part));
  });
}

struct NormShared {
  double partial[warps];
};

template <class D>
__global__ void __launch_bounds__(threads)
    divide_by_norm(D* matrix, std::int64_t count, const double* partial, std::int64_t partials,
                   double epsilon) {
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < partials; i += threads)
    mine += partial[i];
  const double norm = sqrt(block_sum<warps>(mine, shared_memory<NormShared>().partial));
  const float factor = static_cast<float>(1 / (norm > epsilon ? norm : epsilon));
  for_each_element(
      count, [&](std::int64_t i) { matrix[i] = from_float<D>(to_float(matrix[i]) * factor); });
}

constexpr int tile = 32;
constexpr int tile_rows = threads / tile;  ///< rows of a tile that the block handles at once

/// A tile of the sum, on its way to its mirror image. The extra column keeps the lanes that read a
/// column in different banks.
template <class D>
struct Tile {
  D values[tile][tile + 1];
};

struct Factors {
  float out, added, identity;
};

/// A block computes one tile on or below the diagonal and writes it and its mirror image.
template <class D>
__global__ void __launch_bounds__(threads)
    symmetric_sum(D* out, const D* added, std::int64_t n, Factors factor) {
  if (blockIdx.x > blockIdx.y) return;
  Tile<D>& shared = shared_memory<Tile<D>>();
  const auto column = static_cast<int>(threadIdx.x) % tile;
  const auto first_row = static_cast<int>(threadIdx.x) / tile;
  const std::int64_t top = static_cast<std::int64_t>(blockIdx.y) * tile;
  const std::int64_t left = static_cast<std::int64_t>(blockIdx.x) * tile;
  for (int row = first_row; row < tile; row += tile_rows) {
    const std::int64_t i = top + row, j = left + column;
    if (i >= n || j > i) continue;
    float value = factor.out * to_float(out[i * n + j]);
    if (added != nullptr) value = fused(factor.added, to_float(added[i * n + j]), value);
    if (i == j) value += factor.identity;
    const D rounded = from_float<D>(value);
    out[i * n + j] = rounded;
    shared.values[row][column] = rounded;
  }
  __syncthreads();
  for (int row = first_row; row < tile; row += tile_rows) {
    const std::int64_t i = left + row, j = top + column;
    if (j < n && i < j) out[i * n + j] = shared.values[column][row];
  }
}

template <class W, class D>
__global__ void __launch_bounds__(threads)
    update(float* master, W* working, std::int16_t* remainder, const D* direction,
           const float* scale_at, std::int64_t count, float keep, float step) {
  if (skips(scale_at)) return;
  for_each_element(count, [&](std::int64_t i) {
    const float change = step * to_float(direction[i]);
    if constexpr (std::is_same_v<W, BFloat16>) {
      if (remainder != nullptr) {
        const SplitMaster split(fused(SplitMaster::join(working[i], remainder[i]), keep, change));
        working[i].bits = split.high.bits;
        remainder[i] = split.low;
        return;
      }
    }
    const float w = fused(master[i], keep, change);
    master[i] = w;
    if (working != nullptr) working[i] = working_weight<W>(w);
  });
}

/// Calls body.operator()<D>() with the type of a direction.
template <class Body>
void dispatch_direction(DType dtype, Body&& body) {
  check(dispatch_among<float, BFloat16>(dtype, body), "Muon's directions are f32 or bf16");
}

template <class T>
T* data_or_null(const View& view) {
  return view ? view.data<T>() : nullptr;
}

}  // namespace

void launch_cuda(const MuonMomentum& op, Stream stream) {
  const std::int64_t count = op.first_moment.size();
  const auto enqueue = [&]<class G, class D>() {
    launch(move_momentum<G, D>, grid_for(count), {threads}, 0, stream, op.direction.data<D>(),
           op.first_moment.data<float>(), op.grad.data<G>(), data_or_null<float>(op.gradient_scale),
           count, static_cast<float>(op.momentum), static_cast<float>(1 - op.momentum));
  };
  dispatch_direction(op.direction.dtype, [&]<class D>() {
    op.grad.dtype == DType::bf16 ? enqueue.template operator()<BFloat16, D>()
                                 : enqueue.template operator()<float, D>();
  });
}

void launch_cuda(const DivideByNorm& op, Stream stream) {
  const std::int64_t count = op.matrix.size();
  dispatch_direction(op.matrix.dtype, [&]<class D>() {
    launch(divide_by_norm<D>, grid_for(count), {threads}, sizeof(NormShared), stream,
           op.matrix.data<D>(), count, op.partial.data<double>(), op.partial.size(), op.epsilon);
  });
}

void launch_cuda(const SymmetricSum& op, Stream stream) {
  const std::int64_t n = op.out.dim(0);
  const Factors factor{.out = static_cast<float>(op.factor),
                       .added = static_cast<float>(op.added_factor),
                       .identity = static_cast<float>(op.identity)};
  dispatch_direction(op.out.dtype, [&]<class D>() {
    launch(symmetric_sum<D>, {pieces(n, tile), pieces(n, tile)}, {threads}, sizeof(Tile<D>), stream,
           op.out.data<D>(), data_or_null<D>(op.added), n, factor);
  });
}

void launch_cuda(const MuonUpdate& op, Stream stream) {
  const std::int64_t count = op.direction.size();
  const auto keep = static_cast<float>(fused(-op.rate, op.weight_decay, 1.0));
  dispatch_working(op.remainder ? DType::f32 : op.master.dtype, op.working, [&]<class W>() {
    check(!op.remainder || op.working.dtype == DType::bf16,
          "a split master weight has a bf16 working weight");
    dispatch_direction(op.direction.dtype, [&]<class D>() {
      launch(update<W, D>, grid_for(count), {threads}, 0, stream,
             op.remainder ? nullptr : op.master.data<float>(), data_or_null<W>(op.working),
             data_or_null<std::int16_t>(op.remainder), op.direction.data<D>(),
             data_or_null<float>(op.gradient_scale), count, keep, static_cast<float>(-op.step));
    });
  });
}

}  // namespace sluice
