#include "kernels/cpu/gemm.h"

#include <omp.h>

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/base/philox.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/elementwise.h"

namespace sluice::cpu {
namespace {

using Memory = dnnl::memory;

/// Everything that distinguishes one tile's primitive from another's.
struct TileShape {
  std::int64_t m, n, k;
  std::int64_t lda, ldb, ldc;
  bool transpose_a, transpose_b, accumulate;
  DType in, out;
  std::optional<DType> bias;

  bool operator==(const TileShape&) const = default;
};

struct TileShapeHash {
  std::size_t operator()(const TileShape& s) const {
    std::uint64_t key = 0;
    for (const std::int64_t value :
         {s.m, s.n, s.k, s.lda, s.ldb, s.ldc,
          static_cast<std::int64_t>(s.transpose_a) | static_cast<std::int64_t>(s.transpose_b) << 1 |
              static_cast<std::int64_t>(s.accumulate) << 2 | static_cast<std::int64_t>(s.in) << 4 |
              static_cast<std::int64_t>(s.out) << 8})
      key = mix_key(key, static_cast<std::uint64_t>(value));
    return key;
  }
};

Memory::data_type onednn_type(DType dtype) {
  return dtype == DType::bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
}

const dnnl::engine& engine() {
  static const dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

struct TilePrimitive {
  dnnl::matmul matmul;
  Memory::desc a, b, c, bias, scratchpad;
};

/// oneDNN 3 has no operation descriptors any more.
dnnl::matmul::primitive_desc describe(const TilePrimitive& p, bool bias,
                                      const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  using Described = dnnl::matmul::primitive_desc;
  return bias ? Described(engine(), p.a, p.b, p.bias, p.c, attributes)
              : Described(engine(), p.a, p.b, p.c, attributes);
#else
  return {bias ? dnnl::matmul::desc(p.a, p.b, p.bias, p.c) : dnnl::matmul::desc(p.a, p.b, p.c),
          attributes, engine()};
#endif
}

TilePrimitive make_primitive(const TileShape& s) {
  TilePrimitive p;
  const auto in = onednn_type(s.in);
  p.a =
      Memory::desc({s.m, s.k}, in, s.transpose_a ? Memory::dims{1, s.lda} : Memory::dims{s.lda, 1});
  p.b =
      Memory::desc({s.k, s.n}, in, s.transpose_b ? Memory::dims{1, s.ldb} : Memory::dims{s.ldb, 1});
  p.c = Memory::desc({s.m, s.n}, onednn_type(s.out), Memory::dims{s.ldc, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attributes.set_post_ops(ops);
  }
  if (s.bias) p.bias = Memory::desc({1, s.n}, onednn_type(*s.bias), Memory::dims{s.n, 1});
  const auto primitive = describe(p, s.bias.has_value(), attributes);
  p.scratchpad = primitive.scratchpad_desc();
  p.matmul = dnnl::matmul(primitive);
  return p;
}

/// True if oneDNN 3.7.2 computes this wrongly: it takes the strides beside a dimension of 1 for
/// those of contiguous memory, so it reads a single row of a transposed `a`, and writes a single
/// column of `out`, at other addresses. 2.6 and 3.12.1 are right, releases between were not tried.
constexpr bool misreads(const TileShape& s) {
#if DNNL_VERSION_MAJOR >= 3
  return (s.m == 1 && s.transpose_a && s.k > 1) || (s.n == 1 && s.m > 1 && s.ldc > 1);
#else
  static_cast<void>(s);
  return false;
#endif
}

/// Limits OpenMP to one thread for the calling thread. oneDNN plans and computes with OpenMP's
/// threads, and one thread computes one tile.
void use_one_thread() {
  thread_local const bool done = (omp_set_num_threads(1), true);
  static_cast<void>(done);
}

/// Caches primitives, because creating one costs as much as a small product. One cache per thread
/// that issues products, so that it needs no lock. nullopt: this processor cannot compute it.
const std::optional<TilePrimitive>& primitive_for(const TileShape& shape) {
  thread_local std::unordered_map<TileShape, std::optional<TilePrimitive>, TileShapeHash> memo;
  const auto found = memo.find(shape);
  if (found != memo.end()) return found->second;
  use_one_thread();
  std::optional<TilePrimitive> made;
  try {
    made = make_primitive(shape);
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
  }
  return memo.emplace(shape, std::move(made)).first->second;
}

std::byte* scratch_of_this_thread(std::size_t bytes) {
  thread_local std::vector<std::byte> scratch;
  if (scratch.size() < bytes) scratch.resize(bytes);
  return scratch.data();
}

/// The tile of the fixed grid, from measurements (docs/results/performance.md): a vocabulary-sized
/// operand should be read as few times as possible, long sums over a transposed right operand
/// favour wide tiles, and a product of few tiles is cut finer so that several threads have work.
std::pair<std::int64_t, std::int64_t> tile_size(std::int64_t m, std::int64_t n, std::int64_t k,
                                                bool transpose_b) {
  constexpr std::int64_t vocabulary_sized = 8192;
  constexpr std::int64_t long_sum = 2048;
  if (n > vocabulary_sized || k > vocabulary_sized) return {256, 384};
  if (k >= long_sum && transpose_b) return {128, 768};
  std::int64_t tile_m = 256;
  // Columns have equal width in whole SIMD registers: 512 is two tiles of 256, not 384 + 128.
  const std::int64_t columns = (n + 383) / 384;
  const std::int64_t tile_n = ((n + columns - 1) / columns + 15) / 16 * 16;
  while (tile_m > 64 && (m + tile_m - 1) / tile_m * columns < 4)
    tile_m /= 2;
  return {tile_m, tile_n};
}

View block(const View& view, std::int64_t row, std::int64_t column) {
  View part = view;
  part.address += (row * view.stride(0) + column) * static_cast<std::int64_t>(size_of(view.dtype));
  return part;
}

void run_tile(const Gemm& op, const TilePrimitive& p, std::int64_t row, std::int64_t column) {
  const View a = op.transpose_a ? block(op.a, 0, row) : block(op.a, row, 0);
  const View b = op.transpose_b ? block(op.b, column, 0) : block(op.b, 0, column);
  const View c = block(op.out, row, column);
  use_one_thread();
  dnnl::stream stream(engine());
  std::unordered_map<int, Memory> arguments{
      {DNNL_ARG_SRC, Memory(p.a, engine(), a.address)},
      {DNNL_ARG_WEIGHTS, Memory(p.b, engine(), b.address)},
      {DNNL_ARG_DST, Memory(p.c, engine(), c.address)},
      {DNNL_ARG_SCRATCHPAD,
       Memory(p.scratchpad, engine(), scratch_of_this_thread(p.scratchpad.get_size()))}};
  if (op.bias)
    arguments.emplace(
        DNNL_ARG_BIAS,
        Memory(p.bias, engine(),
               op.bias.address + column * static_cast<std::int64_t>(size_of(op.bias.dtype))));
  p.matmul.execute(stream, arguments);
}

/// Computes a tile of `rows` x `columns` without oneDNN.
void run_tile_plain(const Gemm& op, std::int64_t row, std::int64_t rows, std::int64_t column,
                    std::int64_t columns) {
  const auto part = [](const View& view, std::int64_t first_row, std::int64_t first_column,
                       std::int64_t height, std::int64_t width) {
    View made = block(view, first_row, first_column);
    made.shape[0] = height;
    made.shape[1] = width;
    return made;
  };
  const std::int64_t k = op.transpose_a ? op.a.dim(0) : op.a.dim(1);
  Gemm tile = op;
  tile.a = op.transpose_a ? part(op.a, 0, row, k, rows) : part(op.a, row, 0, rows, k);
  tile.b = op.transpose_b ? part(op.b, column, 0, columns, k) : part(op.b, 0, column, k, columns);
  tile.out = part(op.out, row, column, rows, columns);
  if (op.bias) {
    tile.bias.address += column * static_cast<std::int64_t>(size_of(op.bias.dtype));
    tile.bias.shape[0] = columns;
  }
  gemm_plain(tile);
}

bool run_grid(const Gemm& op) {
  const std::int64_t m = op.out.dim(0);
  const std::int64_t n = op.out.dim(1);
  const std::int64_t k = op.transpose_a ? op.a.dim(0) : op.a.dim(1);
  const auto [tile_m, tile_n] = tile_size(m, n, k, op.transpose_b);
  const std::int64_t grid_m = (m + tile_m - 1) / tile_m;
  const std::int64_t grid_n = (n + tile_n - 1) / tile_n;
  // Primitives for whole tiles, and for the smaller ones of the last row and column.
  const TilePrimitive* primitives[2][2] = {};  // null: a tile for run_tile_plain()
  for (int last_row = 0; last_row < 2; ++last_row) {
    for (int last_column = 0; last_column < 2; ++last_column) {
      const TileShape shape{.m = last_row ? m - (grid_m - 1) * tile_m : std::min(tile_m, m),
                            .n = last_column ? n - (grid_n - 1) * tile_n : std::min(tile_n, n),
                            .k = k,
                            .lda = op.a.stride(0),
                            .ldb = op.b.stride(0),
                            .ldc = op.out.stride(0),
                            .transpose_a = op.transpose_a,
                            .transpose_b = op.transpose_b,
                            .accumulate = op.accumulate,
                            .in = op.a.dtype,
                            .out = op.out.dtype,
                            .bias = op.bias ? std::optional(op.bias.dtype) : std::nullopt};
      if (misreads(shape)) continue;
      const auto& made = primitive_for(shape);
      if (!made) return false;
      primitives[last_row][last_column] = &*made;
    }
  }
  const auto tile = [&, rows = tile_m, columns = tile_n](std::int64_t task) {
    const std::int64_t i = task % grid_m;
    const std::int64_t j = task / grid_m;
    const TilePrimitive* const p = primitives[i == grid_m - 1][j == grid_n - 1];
    if (p != nullptr) run_tile(op, *p, i * rows, j * columns);
  };
  parallel_for(grid_m * grid_n, tile);
  for (std::int64_t i = 0; i < grid_m; ++i)
    for (std::int64_t j = 0; j < grid_n; ++j) {
      if (primitives[i == grid_m - 1][j == grid_n - 1] != nullptr) continue;
      const std::int64_t row = i * tile_m, column = j * tile_n;
      run_tile_plain(op, row, std::min(tile_m, m - row), column, std::min(tile_n, n - column));
    }
  return true;
}

/// Returns an f32 copy of a two-dimensional View, with contiguous rows.
View widen(const View& view, std::vector<float>& storage) {
  storage.resize(static_cast<std::size_t>(view.size()));
  View wide(reinterpret_cast<std::byte*>(storage.data()), DType::f32, {view.dim(0), view.dim(1)});
  View row_in(view.address, view.dtype, {view.dim(1)});
  View row_out(wide.address, DType::f32, {view.dim(1)});
  for (std::int64_t i = 0; i < view.dim(0); ++i) {
    row_in.address = block(view, i, 0).address;
    row_out.address = block(wide, i, 0).address;
    launch_cpu(Cast{.out = row_out, .in = row_in});
  }
  return wide;
}

void run_in_f32(const Gemm& op) {
  std::vector<float> a, b, out, bias;
  Gemm wide = op;
  wide.a = widen(op.a, a);
  wide.b = widen(op.b, b);
  if (op.bias) {
    bias.resize(static_cast<std::size_t>(op.bias.size()));
    wide.bias = View(reinterpret_cast<std::byte*>(bias.data()), DType::f32, {op.bias.size()});
    launch_cpu(Cast{.out = wide.bias, .in = op.bias});
  }
  if (op.out.dtype == DType::f32) {
    check(run_grid(wide), "oneDNN cannot multiply f32 matrices on this processor");
    return;
  }
  wide.out = widen(op.out, out);
  check(run_grid(wide), "oneDNN cannot multiply f32 matrices on this processor");
  for (std::int64_t i = 0; i < op.out.dim(0); ++i)
    launch_cpu(Cast{.out = View(block(op.out, i, 0).address, op.out.dtype, {op.out.dim(1)}),
                    .in = View(block(wide.out, i, 0).address, DType::f32, {op.out.dim(1)})});
}

}  // namespace

void gemm_onednn(const Gemm& op) {
  if (op.a.dtype == DType::f16 || !run_grid(op)) run_in_f32(op);
}

}  // namespace sluice::cpu
