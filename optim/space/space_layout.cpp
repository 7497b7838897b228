#include "optim/space/space_layout.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// Returns the number of elements in a block of a matrix: a multiple of its rows.
std::int64_t block_of(const SpaceLayout::Slot& slot) {
  const std::int64_t row = slot.shape.back();
  return (SpaceLayout::block_target + row - 1) / row * row;
}

Residency residency_of(const Parameter& parameter, bool large, const LayoutOptions& options) {
  if (!large) return Residency::device;
  if (parameter.embedding) return options.cpu_tables ? Residency::cpu : Residency::device;
  const auto index = static_cast<std::size_t>(parameter.section);
  return index < options.residency.size() ? options.residency[index] : Residency::device;
}

std::optional<int> resting(const SpaceLayout::Slot& slot) {
  return slot.residency == Residency::host ? std::optional(slot.section) : std::nullopt;
}

}  // namespace

std::vector<FlatBuffer::Part> SpaceLayout::weight_parts() const {
  std::vector<FlatBuffer::Part> parts;
  for (const Slot& slot : slots)
    parts.push_back({slot.offset, slot.padded_size, resting(slot)});
  return parts;
}

std::vector<FlatBuffer::Part> SpaceLayout::gradient_parts(bool narrow) const {
  std::vector<FlatBuffer::Part> parts;
  for (const Slot& slot : slots)
    if (slot.narrow == narrow)
      parts.push_back({slot.gradient_offset, slot.padded_size, resting(slot)});
  return parts;
}

bool SpaceLayout::rests() const {
  return std::ranges::any_of(slots, [](const Slot& slot) { return resting(slot).has_value(); });
}

std::vector<StoredSlice> SpaceLayout::Slot::stored() const {
  if (parts.empty()) return {{name, whole(), 0}};
  std::vector<StoredSlice> slices;
  std::int64_t first = 0;
  for (const StoredPart& part : parts) {
    slices.push_back({part.name, whole(), first});
    slices.back().shape.front() = part.rows;
    first += element_count(slices.back().shape);
  }
  check(first == element_count(whole()), "the parts of a parameter are not the whole of it");
  return slices;
}

std::vector<MatrixShard> SpaceLayout::Slot::matrices() const {
  std::vector<MatrixShard> matrices;
  std::int64_t begin = 0;  // the matrix's first row in the whole slot
  for (const StoredSlice& slice : stored()) {
    MatrixShard& matrix = matrices.emplace_back(
        MatrixShard{.rows = slice.shape.front(), .columns = slice.shape.back()});
    const std::int64_t end = begin + matrix.rows;
    if (shard.divided() && shard.dimension() > 0) {
      matrix.cut = MatrixShard::Cut::columns;
      matrix.count = shape.back();
    } else if (shard.divided()) {
      matrix.cut = MatrixShard::Cut::rows;
      for (const Shard::Range& kept : shard.kept()) {
        const std::int64_t from = std::max(kept.begin, begin), to = std::min(kept.end, end);
        if (from >= to) continue;
        if (matrix.count == 0)
          matrix.first = from - begin;
        else if (matrix.first + matrix.count != from - begin)
          matrix.first = -1;
        matrix.count += to - from;
      }
    }
    begin = end;
  }
  return matrices;
}

bool is_large_matrix(const Parameter& parameter) {
  if (parameter.shape.size() < 2) return false;
  const std::int64_t elements = parameter.shard.divided() ? element_count(parameter.shard.whole())
                                                          : element_count(parameter.shape);
  return elements >= SpaceLayout::bulk_threshold;
}

SpaceLayout::SpaceLayout(const std::vector<Parameter>& all, const LayoutOptions& options) {
  bool in_small_stretch = false, in_divided = false;
  int section = 0;
  for (const Parameter& parameter : all) {
    const std::int64_t elements = element_count(parameter.shape);
    const bool matrix = parameter.shape.size() >= 2;
    const bool large = is_large_matrix(parameter);
    const bool bulk = large && !parameter.embedding;
    const bool narrow = bulk && options.narrow_gradients;
    const std::int64_t spare =
        large && parameter.embedding
            ? (table_rows - parameter.shape.front() % table_rows) % table_rows
            : 0;
    const std::int64_t extent = padded(elements + spare * parameter.shape.back());
    std::int64_t& gradient_size = narrow ? narrow_size : wide_size;
    const Slot& slot = slots.emplace_back(Slot{.name = parameter.name,
                                               .shape = parameter.shape,
                                               .offset = size,
                                               .size = elements,
                                               .spare_rows = spare,
                                               .padded_size = extent,
                                               .decay = matrix,
                                               .bulk = bulk,
                                               .embedding = parameter.embedding,
                                               .narrow = narrow,
                                               .residency = residency_of(parameter, large, options),
                                               .section = parameter.section,
                                               .gradient_offset = gradient_size,
                                               .initial = parameter.initial,
                                               .tensor = parameter.tensor,
                                               .shard = parameter.shard,
                                               .parts = parameter.parts,
                                               .in_out = parameter.in_out,
                                               .quantized = parameter.quantized});
    const bool divided = parameter.shard.divided();
    if (large || !in_small_stretch || parameter.section != section || divided != in_divided)
      stretches.push_back({.offset = size,
                           .size = 0,
                           .gradient_offset = gradient_size,
                           .block = large ? block_of(slot) : block_target,
                           .narrow = narrow,
                           .divided = divided,
                           .section = parameter.section});
    in_small_stretch = !large;
    in_divided = divided;
    section = parameter.section;
    stretches.back().size += extent;
    size += extent;
    gradient_size += extent;
    parameters += elements;
  }
}

}  // namespace sluice
