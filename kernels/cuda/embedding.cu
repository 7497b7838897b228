#include "kernels/embedding.h"

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/token_buckets.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int threads = 128;

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
