#include "optim/space/quantized_space.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/ops/linear/quantized_matrix.h"
#include "kernels/base/error.h"
#include "kernels/quantized.h"
#include "optim/space/initial_values.h"

namespace sluice {
namespace {

/// True if no shard divides a block of elements that share a scale.
bool has_whole_blocks(const Shard& shard) {
  if (!shard.divided() || shard.dimension() == 0) return true;
  return std::ranges::all_of(shard.kept(), [&](const Shard::Range& kept) {
    const bool ends_row = kept.end == shard.whole().back();
    return kept.begin % quantized_block == 0 && (ends_row || kept.end % quantized_block == 0);
  });
}

}  // namespace

QuantizedSpace::QuantizedSpace(const std::vector<Parameter>& parameters, const DevicePtr& device)
    : layout_(parameters, {}) {
  const MemoryScope scope(*device, MemoryUse::weights);
  for (const Slot& slot : layout_.slots) {
    check(slot.quantized != nullptr && slot.shape.size() == 2, "only matrices are quantized");
    check(has_whole_blocks(slot.shard), "ranks divide a block of a quantized matrix");
    *slot.quantized = QuantizedMatrix::zeros(device, slot.shape[0], slot.shape[1]);
  }
}

bool QuantizedSpace::write_rows(const Slot& slot, std::int64_t first, std::span<std::byte> rows) {
  check(first % slot.whole()[1] == 0, "a matrix is quantized row by row");
  const std::int64_t place = slot.shard.divided() ? slot.shard.place(first) : first;
  if (slot.shard.divided()) rows = slot.shard.pick(first, rows, sizeof(float));
  return write(slot, place / slot.shape[1], rows);
}

void QuantizedSpace::initialize(std::uint64_t seed) {
  std::vector<float> values;
  for (const Slot& slot : slots()) {
    const std::int64_t columns = slot.shape[1];
    const std::int64_t rows = std::max<std::int64_t>(1, (1 << 20) / columns);
    for (std::int64_t row = 0; row < slot.shape[0]; row += rows) {
      values.resize(static_cast<std::size_t>(std::min(rows, slot.shape[0] - row) * columns));
      initial_values(slot, seed, row * columns, values);
      check(write(slot, row, std::as_writable_bytes(std::span(values))),
            "initial values are small");
    }
  }
}

bool QuantizedSpace::write(const Slot& slot, std::int64_t row, std::span<std::byte> values) {
  const std::int64_t columns = slot.shape[1], blocks = quantized_blocks(columns);
  const auto count = static_cast<std::int64_t>(values.size() / sizeof(float)) / columns;
  if (count == 0) return true;
  std::vector<std::byte> codes(static_cast<std::size_t>(count * columns));
  std::vector<Half> scales(static_cast<std::size_t>(count * blocks));
  const std::span scale_bytes = std::as_writable_bytes(std::span(scales));
  launch_cpu(Quantize{.codes = View(codes.data(), DType::i8, {count, columns}),
                      .scales = View(scale_bytes.data(), DType::f16, {count, blocks}),
                      .in = View(values.data(), DType::f32, {count, columns})});
  if (std::ranges::any_of(scales, [](Half s) { return std::isinf(static_cast<float>(s)); }))
    return false;
  const QuantizedMatrix& matrix = *slot.quantized;
  matrix.codes.slice(row * columns, {count, columns}).copy_bytes_from(codes);
  matrix.scales.slice(row * blocks, {count, blocks}).copy_bytes_from(scale_bytes);
  return true;
}

}  // namespace sluice
