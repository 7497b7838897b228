#include "kernels/embedding.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 128;
constexpr int bucket_threads = 256;
constexpr int scan_threads = 1024;
constexpr int rows_at_once = 8;  ///< of gradients that a thread loads before it adds the first

/// One block per row of the output. `rows`: those of token_table. position_table may be null.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    embed(T* out, const std::int32_t* tokens, const T* token_table, std::int64_t first_row,
          std::int64_t rows, const T* position_table, std::int64_t positions,
          std::int64_t first_position, std::int64_t width) {
  const std::int64_t i = blockIdx.x;
  const std::int64_t token = tokens[i] - first_row;
  const bool here = 0 <= token && token < rows;
  const T* by_token = here ? token_table + token * width : nullptr;
  const T* by_position = position_table != nullptr
                             ? position_table + (first_position + i % positions) * width
                             : nullptr;
  for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * N; j < width; j += threads * N) {
    float a[N] = {}, b[N] = {};
    if (by_token != nullptr) load_floats(a, by_token + j);
    if (by_position != nullptr) load_floats(b, by_position + j);
#pragma unroll
    for (int k = 0; k < N; ++k)
      a[k] += b[k];
    store_floats(out + i * width + j, a);
  }
}

/// Each thread sums N elements of a position over the batch, in order. The parts that sequences
/// have in grad_out and in the table have `elements` elements.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    add_positions(float* table, const T* grad_out, std::int64_t batch, std::int64_t elements) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= elements) return;
  float sum[N];
  load_floats(sum, table + i);
#pragma unroll 4
  for (std::int64_t b = 0; b < batch; ++b) {
    float grads[N];
    load_floats(grads, grad_out + b * elements + i);
#pragma unroll
    for (int k = 0; k < N; ++k)
      sum[k] += grads[k];
  }
  store_floats(table + i, sum);
}

/// The positions of each token of a part of the vocabulary in a batch, in the stream's workspace:
/// places[end[v-1] .. end[v]) are the positions of token first + v, in any order.
struct TokenBuckets {
  const std::int32_t* end;
  const std::int32_t* places;
};

/// Places of a bucket in shared memory, in rising order.
struct SortedPlaces {
  static constexpr std::int32_t capacity = 2048;

  std::int32_t place[capacity];
  std::int32_t count;

  /// Collects those of `found` places that lie in [first, first + capacity), or all if they are no
  /// more than `capacity`. The whole block takes part.
  __device__ void collect(const std::int32_t* places, std::int32_t found, std::int32_t first) {
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const auto stride = static_cast<std::int32_t>(blockDim.x);
    __syncthreads();  // the places before may still be read
    if (thread == 0) count = found <= capacity ? found : 0;
    __syncthreads();
    for (std::int32_t i = thread; i < found; i += stride) {
      if (found <= capacity)
        place[i] = places[i];
      else if (first <= places[i] && places[i] - first < capacity)
        place[atomicAdd(&count, 1)] = places[i];
    }
    __syncthreads();
    sort(thread, stride);
  }

 private:
  /// Bitonic sort (Batcher, 1968) over the next power of two; padding sorts to the end. All places
  /// differ, so the result does not depend on their initial order.
  __device__ void sort(std::int32_t thread, std::int32_t stride) {
    std::int32_t size = 1;
    while (size < count)
      size *= 2;
    for (std::int32_t i = count + thread; i < size; i += stride)
      place[i] = 0x7FFFFFFF;
    __syncthreads();
    for (std::int32_t run = 2; run <= size; run *= 2) {
      for (std::int32_t step = run / 2; step > 0; step /= 2) {
        for (std::int32_t i = thread; i < size; i += stride) {
          const std::int32_t other = i ^ step;
          if (other < i) continue;
          const bool rising = (i & run) == 0;
          if ((place[i] > place[other]) == rising) {
            const std::int32_t held = place[i];
            place[i] = place[other];
            place[other] = held;
          }
        }
        __syncthreads();
      }
    }
  }
};

__global__ void __launch_bounds__(bucket_threads)
    clear(std::int32_t* counts, std::int64_t vocabulary) {
  const std::int64_t v = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (v < vocabulary) counts[v] = 0;
}

__global__ void __launch_bounds__(bucket_threads)
    count_tokens(std::int32_t* counts, const std::int32_t* tokens, std::int64_t count,
                 std::int64_t first, std::int64_t vocabulary) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t v = tokens[i] - first;
  if (0 <= v && v < vocabulary) atomicAdd(&counts[v], 1);
}

struct ScanShared {
  std::int32_t sums[warp_size];
};

/// Returns the sum of the values of this lane and all before it.
__device__ __forceinline__ std::int32_t warp_scan(std::int32_t value) {
  const auto lane = static_cast<int>(threadIdx.x) % warp_size;
  for (int distance = 1; distance < warp_size; distance *= 2) {
    const std::int32_t before = shuffle(value, lane < distance ? lane : lane - distance);
    if (lane >= distance) value += before;
  }
  return value;
}

/// One block turns counts into the starts of the buckets. Each warp has a contiguous part, which
/// its lanes read side by side.
__global__ void __launch_bounds__(scan_threads)
    scan(std::int32_t* counts, std::int64_t vocabulary) {
  static_assert(scan_threads == warp_size * warp_size);
  auto& shared = shared_memory<ScanShared>();
  const auto lane = static_cast<int>(threadIdx.x) % warp_size;
  const auto warp = static_cast<int>(threadIdx.x) / warp_size;
  const std::int64_t stretch = (vocabulary + warp_size - 1) / warp_size;
  const std::int64_t begin = warp * stretch;
  const std::int64_t end = begin + stretch < vocabulary ? begin + stretch : vocabulary;
  std::int32_t mine = 0;
#pragma unroll 8
  for (std::int64_t v = begin + lane; v < end; v += warp_size)
    mine += counts[v];
  const std::int32_t through = warp_scan(mine);
  if (lane == warp_size - 1) shared.sums[warp] = through;
  __syncthreads();
  const std::int32_t all_warps = warp_scan(shared.sums[lane]);
  std::int32_t sum = shuffle(all_warps, warp > 0 ? warp - 1 : 0);
  if (warp == 0) sum = 0;
  constexpr int ahead = 8;  // loads before the first store, behind which none may move
  for (std::int64_t first = begin; first < end; first += ahead * warp_size) {
    std::int32_t own[ahead] = {};
#pragma unroll
    for (int a = 0; a < ahead; ++a)
      if (const std::int64_t v = first + a * warp_size + lane; v < end) own[a] = counts[v];
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      const std::int32_t up_to_here = warp_scan(own[a]);
      if (const std::int64_t v = first + a * warp_size + lane; v < end)
        counts[v] = sum + up_to_here - own[a];
      sum += shuffle(up_to_here, warp_size - 1);
    }
  }
}

/// Stores each position at its bucket's cursor, which moves from the bucket's start to its end.
__global__ void __launch_bounds__(bucket_threads)
    fill(std::int32_t* cursors, std::int32_t* places, const std::int32_t* tokens,
         std::int64_t count, std::int64_t first, std::int64_t vocabulary) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t v = tokens[i] - first;
  if (0 <= v && v < vocabulary) places[atomicAdd(&cursors[v], 1)] = static_cast<std::int32_t>(i);
}

/// Fills the buckets of the tokens [first, first + vocabulary); others are in no bucket. This is a
/// counting sort on integers: its atomics change the order in a bucket, never the contents.
TokenBuckets fill_buckets(const std::int32_t* tokens, std::int64_t count, std::int64_t first,
                          std::int64_t vocabulary, Stream stream) {
  auto* cursors = workspace<std::int32_t>(stream, vocabulary + count);
  auto* places = cursors + vocabulary;
  launch(clear, {pieces(vocabulary, bucket_threads)}, {bucket_threads}, 0, stream, cursors,
         vocabulary);
  launch(count_tokens, {pieces(count, bucket_threads)}, {bucket_threads}, 0, stream, cursors,
         tokens, count, first, vocabulary);
  launch(scan, {1}, {scan_threads}, sizeof(ScanShared), stream, cursors, vocabulary);
  launch(fill, {pieces(count, bucket_threads)}, {bucket_threads}, 0, stream, cursors, places,
         tokens, count, first, vocabulary);
  return {.end = cursors, .places = places};
}

/// Block (position, columns). The block at the first place of a bucket adds the rows of grad_out at
/// all of the bucket's places, in rising order, to the token's row. The others end at once. A
/// thread has N columns.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    add_tokens(float* table, const T* grad_out, const std::int32_t* tokens, std::int64_t first_row,
               std::int64_t rows, std::int64_t padding, std::int64_t count,
               const std::int32_t* bucket_end, const std::int32_t* places, std::int64_t width) {
  auto& shared = shared_memory<SortedPlaces>();
  const std::int64_t token = tokens[blockIdx.x] - first_row;
  if (token < 0 || token >= rows || token + first_row == padding) return;
  const std::int32_t begin = token == 0 ? 0 : bucket_end[token - 1];
  if (places[begin] != static_cast<std::int32_t>(blockIdx.x)) return;
  const std::int32_t found = bucket_end[token] - begin;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N;
  const bool active = column < width;
  const T* const grads = grad_out + column;
  float* const to = table + token * width + column;
  float sum[N] = {};
  if (active) load_floats(sum, to);
  for (std::int64_t first = 0; first < count; first += SortedPlaces::capacity) {
    shared.collect(places + begin, found, static_cast<std::int32_t>(first));
    for (std::int32_t i = 0; active && i < shared.count; i += rows_at_once) {
      // All loads come before the first use. The last row stands in for those that do not exist.
      float held[rows_at_once][N];
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k) {
        const std::int32_t last = shared.count - 1;
        load_floats(held[k], grads + shared.place[i + k < last ? i + k : last] * width);
      }
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k)
#pragma unroll
        for (int j = 0; j < N; ++j)
          if (i + k < shared.count) sum[j] += held[k][j];
    }
    if (found <= SortedPlaces::capacity) break;
  }
  if (active) store_floats(to, sum);
}

}  // namespace

void launch_cuda(const EmbeddingForward& op, Stream stream) {
  const std::int64_t width = op.out.dim(-1);
  dispatch(op.out.dtype, [&]<class T>() {
    constexpr int packed = wide<T>;
    const bool wide_rows =
        width % packed == 0 && aligned(16, {op.out, op.token_table, op.position_table});
    launch(wide_rows ? embed<T, packed> : embed<T, 1>, {static_cast<unsigned>(op.tokens.size())},
           {threads}, 0, stream, op.out.data<T>(), op.tokens.data<std::int32_t>(),
           op.token_table.data<T>(), op.first_row, op.token_table.dim(0),
           op.position_table ? op.position_table.data<T>() : nullptr, op.tokens.dim(1),
           op.first_position, width);
  });
}

void launch_cuda(const EmbeddingBackward& op, Stream stream) {
  const std::int64_t width = op.grad_out.dim(-1);
  const std::int64_t count = op.tokens.size();
  const auto* tokens = op.tokens.data<std::int32_t>();
  dispatch(op.grad_out.dtype, [&]<class T>() {
    const T* grad_out = op.grad_out.data<T>();
    constexpr int packed = 4;
    const bool wide_rows = width % packed == 0 &&
                           aligned(16, {op.grad_token_table, op.grad_position_table}) &&
                           aligned(packed * sizeof(T), {op.grad_out});
    if (op.grad_token_table) {
      const std::int64_t rows = op.grad_token_table.dim(0);
      const TokenBuckets buckets = fill_buckets(tokens, count, op.first_row, rows, stream);
      launch(wide_rows ? add_tokens<T, packed> : add_tokens<T, 1>,
             {static_cast<unsigned>(count), pieces(width, threads * (wide_rows ? packed : 1))},
             {threads}, sizeof(SortedPlaces), stream, op.grad_token_table.data<float>(), grad_out,
             tokens, op.first_row, rows, op.padding, count, buckets.end, buckets.places, width);
    }
    if (op.grad_position_table) {
      const std::int64_t elements = op.tokens.dim(1) * width;
      launch(wide_rows ? add_positions<T, packed> : add_positions<T, 1>,
             {pieces(elements, threads * (wide_rows ? packed : 1))}, {threads}, 0, stream,
             op.grad_position_table.data<float>() + op.first_position * width, grad_out,
             op.tokens.dim(0), elements);
    }
  });
}

}  // namespace sluice
