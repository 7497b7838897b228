#include "kernels/embedding.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 128;
constexpr int bucket_threads = 256;
constexpr int scan_threads = 1024;

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

/// Each thread sums one element of a position over the batch, in order.
template <class T>
__global__ void __launch_bounds__(threads)
    add_positions(float* table, const T* grad_out, std::int64_t batch, std::int64_t elements,
                  std::int64_t first_element) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  float sum = table[first_element + i];
  for (std::int64_t b = 0; b < batch; ++b)
    sum += to_float(grad_out[b * elements + i]);
  table[first_element + i] = sum;
}

/// The positions of each token of a part of the vocabulary in a batch, in the stream's workspace:
/// places[end[v-1] .. end[v]) are the positions of token first + v, in any order.
struct TokenBuckets {
  const std::int32_t* end;
  const std::int32_t* places;
};

/// A bucket in shared memory, sorted by the whole block.
struct SortedPlaces {
  static constexpr std::int32_t sortable = 2048;

  std::int32_t place[sortable];

  /// Bitonic sort (Batcher, 1968) over the next power of two; padding sorts to the end. All places
  /// differ, so the result does not depend on their initial order.
  __device__ void sort(const std::int32_t* places, std::int32_t count) {
    std::int32_t size = 1;
    while (size < count)
      size *= 2;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const auto stride = static_cast<std::int32_t>(blockDim.x);
    for (std::int32_t i = thread; i < size; i += stride)
      place[i] = i < count ? places[i] : 0x7FFFFFFF;
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
  std::int32_t sums[scan_threads];
};

/// One block turns counts into the starts of the buckets. Each thread sums a contiguous part, and
/// thread 0 sums the parts.
__global__ void __launch_bounds__(scan_threads)
    scan(std::int32_t* counts, std::int64_t vocabulary) {
  auto& shared = shared_memory<ScanShared>();
  const std::int64_t stretch = (vocabulary + scan_threads - 1) / scan_threads;
  const std::int64_t begin = static_cast<std::int64_t>(threadIdx.x) * stretch;
  const std::int64_t end = begin + stretch < vocabulary ? begin + stretch : vocabulary;
  std::int32_t mine = 0;
  for (std::int64_t v = begin; v < end; ++v)
    mine += counts[v];
  shared.sums[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    std::int32_t sum = 0;
    for (int t = 0; t < scan_threads; ++t) {
      const std::int32_t own = shared.sums[t];
      shared.sums[t] = sum;
      sum += own;
    }
  }
  __syncthreads();
  std::int32_t sum = shared.sums[threadIdx.x];
  for (std::int64_t v = begin; v < end; ++v) {
    const std::int32_t own = counts[v];
    counts[v] = sum;
    sum += own;
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

/// Block (row of the token table, columns). Adds the rows of grad_out at the token's positions, in
/// order. The positions come from its bucket, unsorted, and are sorted here. If a token has more
/// than `sortable` positions, the block searches all tokens instead.
template <class T>
__global__ void __launch_bounds__(threads)
    add_tokens(float* table, const T* grad_out, const std::int32_t* tokens, std::int64_t first_row,
               std::int64_t count, const std::int32_t* bucket_end, const std::int32_t* places,
               std::int64_t width) {
  auto& shared = shared_memory<SortedPlaces>();
  const auto token = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t begin = token == 0 ? 0 : bucket_end[token - 1];
  const std::int32_t found = bucket_end[token] - begin;
  if (found == 0) return;
  const bool sorted = found <= SortedPlaces::sortable;
  if (sorted) shared.sort(places + begin, found);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x;
  if (column >= width) return;
  float sum = table[token * width + column];
  if (sorted) {
    for (std::int32_t i = 0; i < found; ++i)
      sum += to_float(grad_out[shared.place[i] * width + column]);
  } else {
    for (std::int64_t i = 0; i < count; ++i)
      if (tokens[i] - first_row == token) sum += to_float(grad_out[i * width + column]);
  }
  table[token * width + column] = sum;
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
    if (op.grad_token_table) {
      const std::int64_t rows = op.grad_token_table.dim(0);
      const TokenBuckets buckets = fill_buckets(tokens, count, op.first_row, rows, stream);
      launch(add_tokens<T>, {static_cast<unsigned>(rows), pieces(width, threads)}, {threads},
             sizeof(SortedPlaces), stream, op.grad_token_table.data<float>(), grad_out, tokens,
             op.first_row, count, buckets.end, buckets.places, width);
    }
    if (op.grad_position_table) {
      const std::int64_t elements = op.tokens.dim(1) * width;
      launch(add_positions<T>, {pieces(elements, threads)}, {threads}, 0, stream,
             op.grad_position_table.data<float>(), grad_out, op.tokens.dim(0), elements,
             op.first_position * width);
    }
  });
}

}  // namespace sluice
