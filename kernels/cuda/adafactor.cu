#include "kernels/adafactor.h"

#include <type_traits>

#include "kernels/base/half.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/master_weight.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int warps = 8;
constexpr int threads = warps * warp_size;
constexpr int tile = static_cast<int>(AdafactorBlocks::tile);
constexpr int share = tile / warp_size;  ///< columns per lane in a tile's row
static_assert(threads == AdafactorBlocks::moments_sum);

struct Shared {
  double partial[warps];
};
struct SquaresShared {
  float column[warps][tile];
  double partial[warps];
};

/// True if the scale is not finite; the whole update is then skipped.
__device__ __forceinline__ bool skips(float scale) {
  return !(scale - scale == 0);
}

/// A lane's `share` of the columns of a tile: neighbours if they can be accessed together, else
/// every 32nd column. Columns beyond the end of a row are read as zero and not written.
template <bool packed>
struct Lane {
  std::int64_t start;  ///< first column of the tile
  std::int64_t columns;
  int lane;

  __device__ __forceinline__ int place(int i) const {
    return packed ? lane * share + i : lane + i * warp_size;
  }
  __device__ __forceinline__ std::int64_t column(int i) const { return start + place(i); }
  __device__ __forceinline__ bool has(int i) const { return column(i) < columns; }

  /// `row` points to the start of the row.
  template <class T>
  __device__ __forceinline__ void read(T (&to)[share], const T* row) const {
    if constexpr (packed) {
      Pack<T, share> pack{};
      if (has(0)) pack = load<share>(row + column(0));
#pragma unroll
      for (int i = 0; i < share; ++i)
        to[i] = pack.values[i];
    } else {
#pragma unroll
      for (int i = 0; i < share; ++i)
        to[i] = has(i) ? row[column(i)] : T{};
    }
  }
  template <class T>
  __device__ __forceinline__ void write(T* row, const T (&from)[share]) const {
    if constexpr (packed) {
      Pack<T, share> pack;
#pragma unroll
      for (int i = 0; i < share; ++i)
        pack.values[i] = from[i];
      if (has(0)) store<share>(row + column(0), pack);
    } else {
#pragma unroll
      for (int i = 0; i < share; ++i)
        if (has(i)) row[column(i)] = from[i];
    }
  }
};

/// Arrays that an update reads and writes.
template <class W, class G>
struct Matrix {
  AdafactorBlocks blocks;
  float* master;
  W* working;               ///< null if the model computes with the master itself
  std::int16_t* remainder;  ///< if not null, master is null; working is its other half
  const G* grad;
  const float* row_moment;  ///< null: a vector
  const float* column_moment;
  double* scratch;
  const float* scale_at;

  __device__ __forceinline__ float scale() const { return scale_at != nullptr ? *scale_at : 1.0f; }

  /// Calls body(row, index of its first element) for the rows of this warp.
  template <class Body>
  __device__ __forceinline__ void each_row(Body&& body) const {
    const std::int64_t split = blocks.rows_per_split(), first = blockIdx.y * split;
    const std::int64_t end = first + split < blocks.rows ? first + split : blocks.rows;
    for (std::int64_t row = first + threadIdx.x / warp_size; row < end; row += warps)
      body(row, row * blocks.columns);
  }

  template <bool packed>
  __device__ __forceinline__ Lane<packed> lane() const {
    return {.start = static_cast<std::int64_t>(blockIdx.x) * tile,
            .columns = blocks.columns,
            .lane = static_cast<int>(threadIdx.x) % warp_size};
  }

  template <bool packed>
  __device__ __forceinline__ void read_gradient(float (&g)[share], const Lane<packed>& lane,
                                                std::int64_t at) const {
    G stored[share];
    lane.read(stored, grad + at);
#pragma unroll
    for (int i = 0; i < share; ++i)
      g[i] = to_float(stored[i]);
  }

  template <bool packed>
  __device__ __forceinline__ void read_master(float (&w)[share], const Lane<packed>& lane,
                                              std::int64_t at) const {
    if constexpr (std::is_same_v<W, BFloat16>) {
      if (remainder != nullptr) {
        W high[share];
        std::int16_t low[share];
        lane.read(high, working + at);
        lane.read(low, remainder + at);
#pragma unroll
        for (int i = 0; i < share; ++i)
          w[i] = SplitMaster::join(high[i], low[i]);
        return;
      }
    }
    lane.read(w, master + at);
  }

  template <bool packed>
  __device__ __forceinline__ void write_master(const float (&w)[share], const Lane<packed>& lane,
                                               std::int64_t at) const {
    W narrow[share];
#pragma unroll
    for (int i = 0; i < share; ++i)
      narrow[i] = working_weight<W>(w[i]);
    if (working != nullptr) lane.write(working + at, narrow);
    if (remainder == nullptr) return lane.write(master + at, w);
    std::int16_t low[share];
#pragma unroll
    for (int i = 0; i < share; ++i)
      low[i] = SplitMaster(w[i]).low;
    lane.write(remainder + at, low);
  }
};

__device__ __forceinline__ std::int64_t block_index() {
  return static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
}

/// Sums the squares of gradients, along rows and down columns, and of weights. It sums in fp32
/// within a thread's rows and a warp's row, and in fp64 across them.
template <class W, class G, bool packed>
__global__ void __launch_bounds__(threads) add_squares(Matrix<W, G> matrix, bool of_weights) {
  auto& shared = shared_memory<SquaresShared>();
  const AdafactorBlocks& blocks = matrix.blocks;
  const float scale = matrix.scale();
  if (skips(scale)) return;
  const auto lane = matrix.template lane<packed>();
  float down[share] = {};
  float weights = 0;
  matrix.each_row([&](std::int64_t row, std::int64_t at) {
    float g[share];
    matrix.read_gradient(g, lane, at);
    float along = 0;
#pragma unroll
    for (int i = 0; i < share; ++i) {
      g[i] *= scale;
      down[i] += g[i] * g[i];
      along += g[i] * g[i];
    }
    along = warp_sum(along);
    if (lane.lane == 0)
      matrix.scratch[blocks.row_squares() + blockIdx.x * blocks.rows + row] = along;
    if (!of_weights) return;
    float w[share];
    matrix.read_master(w, lane, at);
#pragma unroll
    for (int i = 0; i < share; ++i)
      weights += w[i] * w[i];
  });
#pragma unroll
  for (int i = 0; i < share; ++i)
    shared.column[threadIdx.x / warp_size][lane.place(i)] = down[i];
  const double sum = block_sum<warps>(static_cast<double>(weights), shared.partial);
  if (of_weights && threadIdx.x == 0) matrix.scratch[blocks.weight_squares() + block_index()] = sum;
  const std::int64_t column = lane.start + threadIdx.x;
  if (threadIdx.x >= tile || column >= blocks.columns) return;
  double total = 0;  // block_sum included a barrier
#pragma unroll
  for (int warp = 0; warp < warps; ++warp)
    total += static_cast<double>(shared.column[warp][threadIdx.x]);
  matrix.scratch[blocks.column_squares() + blockIdx.y * blocks.columns + column] = total;
}

/// The moments of rows or of columns, and the means of squares that they move towards.
struct Side {
  float* moments;
  const double* sums;  ///< [parts, count]
  double* totals;      ///< sum of moments per thread block; null: not needed
  std::int64_t parts, count;
  double length;  ///< number of squares in the sum over all parts
};

__global__ void __launch_bounds__(threads)
    move_moments(Side columns, Side rows, const float* scale_at, float beta2, float rest,
                 float epsilon) {
  if (scale_at != nullptr && skips(*scale_at)) return;
  const Side side = blockIdx.y == 0 ? columns : rows;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * threads;
  if (first >= side.count) return;
  const std::int64_t i = first + threadIdx.x;
  double moment = 0;
  if (i < side.count) {
    double sum = 0;
    for (std::int64_t part = 0; part < side.parts; ++part)
      sum += side.sums[part * side.count + i];
    const float mean = static_cast<float>(sum / side.length) + epsilon;
    const float moved = beta2 * side.moments[i] + rest * mean;
    side.moments[i] = moved;
    moment = static_cast<double>(moved);
  }
  const double total = block_sum<warps>(moment, shared_memory<Shared>().partial);
  if (threadIdx.x == 0 && side.totals != nullptr) side.totals[blockIdx.x] = total;
}

/// Sum of numbers in scratch memory, with the same bits in every block.
__device__ __forceinline__ double sum_of(const double* numbers, std::int64_t count) {
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += threads)
    mine += numbers[i];
  const double sum = block_sum<warps>(mine, shared_memory<Shared>().partial);
  __syncthreads();  // before the shared memory is reused
  return sum;
}

/// Divisors that turn gradients into updates: row_root * column_root.
template <class W, class G, bool packed>
struct Roots {
  float mean = 1;
  float column[share];

  __device__ __forceinline__ Roots(const Matrix<W, G>& matrix, const Lane<packed>& lane) {
    const AdafactorBlocks& blocks = matrix.blocks;
    if (matrix.row_moment != nullptr)
      mean =
          static_cast<float>(sum_of(matrix.scratch + blocks.moment_sums(), blocks.moments_sums()) /
                             static_cast<double>(blocks.rows));
    lane.read(column, matrix.column_moment);
#pragma unroll
    for (int i = 0; i < share; ++i)
      column[i] = lane.has(i) ? sqrtf(column[i]) : 1.0f;
  }
  __device__ __forceinline__ float row(const Matrix<W, G>& matrix, std::int64_t at) const {
    return matrix.row_moment != nullptr ? sqrtf(matrix.row_moment[at] / mean) : 1.0f;
  }
};

template <class W, class G, bool packed>
__global__ void __launch_bounds__(threads) add_update_squares(Matrix<W, G> matrix) {
  const float scale = matrix.scale();
  if (skips(scale)) return;
  const auto lane = matrix.template lane<packed>();
  const Roots<W, G, packed> roots(matrix, lane);
  float mine = 0;
  matrix.each_row([&](std::int64_t row, std::int64_t at) {
    float g[share];
    matrix.read_gradient(g, lane, at);
    const float root = roots.row(matrix, row);
#pragma unroll
    for (int i = 0; i < share; ++i) {
      const float u = g[i] * scale / (root * roots.column[i]);
      mine += u * u;
    }
  });
  const double sum = block_sum<warps>(static_cast<double>(mine), shared_memory<Shared>().partial);
  if (threadIdx.x == 0) matrix.scratch[matrix.blocks.update_squares() + block_index()] = sum;
}

/// Computes the factor of all updates: learning rate, weights' size, and clipping.
__global__ void __launch_bounds__(threads)
    find_factor(double* scratch, AdafactorBlocks blocks, const float* scale_at, double rate,
                double epsilon2, double clip, bool scale_by_weights) {
  if (scale_at != nullptr && skips(*scale_at)) return;
  const auto count = static_cast<double>(blocks.rows * blocks.columns);
  double factor = rate;
  if (scale_by_weights) {
    const double weights = sqrt(sum_of(scratch + blocks.weight_squares(), blocks.blocks()) / count);
    factor *= weights > epsilon2 ? weights : epsilon2;
  }
  const double excess =
      sqrt(sum_of(scratch + blocks.update_squares(), blocks.blocks()) / count) / clip;
  if (threadIdx.x == 0) scratch[blocks.factor()] = factor / (excess > 1 ? excess : 1);
}

template <class W, class G, bool packed>
__global__ void __launch_bounds__(threads) apply(Matrix<W, G> matrix, float keep) {
  const float scale = matrix.scale();
  if (skips(scale)) return;
  const auto lane = matrix.template lane<packed>();
  const Roots<W, G, packed> roots(matrix, lane);
  const float factor = static_cast<float>(matrix.scratch[matrix.blocks.factor()]) * scale;
  matrix.each_row([&](std::int64_t row, std::int64_t at) {
    float w[share], g[share];
    matrix.read_master(w, lane, at);
    matrix.read_gradient(g, lane, at);
    const float root = roots.row(matrix, row);
    // Explicitly fused, so that the bits are the same wherever the compiler moves this.
#pragma unroll
    for (int i = 0; i < share; ++i)
      w[i] = fmaf(w[i], keep, -(factor * g[i]) / (root * roots.column[i]));
    matrix.write_master(w, lane, at);
  });
}

template <class W, class G, bool packed>
void update(const Adafactor& op, const Matrix<W, G>& matrix, Stream stream) {
  const AdafactorBlocks blocks = op.blocks();
  const dim3 grid{static_cast<unsigned>(blocks.tiles()), static_cast<unsigned>(blocks.splits())};
  launch(add_squares<W, G, packed>, grid, {threads}, sizeof(SquaresShared), stream, matrix,
         op.scale_by_weights);
  const Side columns{.moments = op.column_moment.data<float>(),
                     .sums = matrix.scratch + blocks.column_squares(),
                     .totals = nullptr,
                     .parts = blocks.splits(),
                     .count = blocks.columns,
                     .length = static_cast<double>(blocks.rows)};
  const Side rows{.moments = op.row_moment ? op.row_moment.data<float>() : nullptr,
                  .sums = matrix.scratch + blocks.row_squares(),
                  .totals = matrix.scratch + blocks.moment_sums(),
                  .parts = blocks.tiles(),
                  .count = blocks.rows,
                  .length = static_cast<double>(blocks.columns)};
  const std::int64_t longer = blocks.rows > blocks.columns ? blocks.rows : blocks.columns;
  launch(move_moments, {pieces(longer, threads), op.row_moment ? 2u : 1u}, {threads},
         sizeof(Shared), stream, columns, rows, matrix.scale_at, static_cast<float>(op.beta2),
         static_cast<float>(1 - op.beta2), static_cast<float>(op.epsilon1));
  launch(add_update_squares<W, G, packed>, grid, {threads}, sizeof(Shared), stream, matrix);
  launch(find_factor, {1}, {threads}, sizeof(Shared), stream, matrix.scratch, blocks,
         matrix.scale_at, op.rate, op.epsilon2, op.clip, op.scale_by_weights);
  launch(apply<W, G, packed>, grid, {threads}, sizeof(Shared), stream, matrix,
         static_cast<float>(1 - op.rate * op.weight_decay));
}

template <class W, class G>
void update(const Adafactor& op, Stream stream) {
  check(op.blocks().rows * op.blocks().columns == op.grad.size() &&
            op.scratch.size() >= op.blocks().size(),
        "Adafactor's moments and scratch belong to a matrix of another shape");
  const Matrix<W, G> matrix{
      .blocks = op.blocks(),
      .master = op.remainder ? nullptr : op.master.data<float>(),
      .working = op.working ? op.working.data<W>() : nullptr,
      .remainder = op.remainder ? op.remainder.data<std::int16_t>() : nullptr,
      .grad = op.grad.data<G>(),
      .row_moment = op.row_moment ? op.row_moment.data<float>() : nullptr,
      .column_moment = op.column_moment.data<float>(),
      .scratch = op.scratch.data<double>(),
      .scale_at = op.gradient_scale ? op.gradient_scale.data<float>() : nullptr};
  const bool packed = op.blocks().columns % share == 0 &&
                      aligned(16, {op.master, op.column_moment}) &&
                      aligned(share * sizeof(W), {op.working}) &&
                      aligned(share * sizeof(G), {op.grad}) && aligned(8, {op.remainder});
  packed ? update<W, G, true>(op, matrix, stream) : update<W, G, false>(op, matrix, stream);
}

}  // namespace

void launch_cuda(const Adafactor& op, Stream stream) {
  dispatch_working(op.remainder ? DType::f32 : op.master.dtype, op.working, [&]<class W>() {
    check(!op.remainder || op.working.dtype == DType::bf16,
          "a split master weight has a bf16 working weight");
    if constexpr (std::is_same_v<W, BFloat16>)
      if (op.grad.dtype == DType::bf16) return update<W, BFloat16>(op, stream);
    update<W, float>(op, stream);
  });
}

}  // namespace sluice
