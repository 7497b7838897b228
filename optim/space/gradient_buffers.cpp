#include "optim/space/gradient_buffers.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// A section's gradients in one of the two buffers.
struct Extent {
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  void add(std::int64_t first, std::int64_t count) {
    if (size() == 0) begin = first;
    end = first + count;
  }
};

struct Section {
  int number = 0;
  bool table = false;     ///< has an embedding table
  bool matrices = false;  ///< has large matrices
  std::array<Extent, 2> gradients{};

  bool shares() const { return matrices && !table; }
};

std::vector<Section> sections_of(const SpaceLayout& layout) {
  std::vector<Section> sections;
  for (const auto& slot : layout.slots) {
    if (sections.empty() || sections.back().number != slot.section)
      sections.push_back({.number = slot.section});
    Section& section = sections.back();
    section.table = section.table || slot.embedding;
    section.matrices = section.matrices || slot.bulk;
    section.gradients[slot.narrow ? 1 : 0].add(slot.gradient_offset, slot.padded_size);
  }
  return sections;
}

}  // namespace

GradientBuffers::GradientBuffers(const SpaceLayout& layout, const DevicePtr& device,
                                 const DevicePtr& host, DType wide, DType narrow,
                                 const std::optional<std::vector<SpaceRange>>& kept)
    : dtypes_{wide, narrow} {
  if (!kept) {
    whole_.emplace();
    for (const std::size_t i : {0u, 1u})
      if (const auto parts = layout.gradient_parts(i == 1); i == 0 || !parts.empty())
        (*whole_)[i] = FlatBuffer(parts, device, host, dtypes_[i], MemoryUse::gradients);
    return;
  }
  std::array<std::int64_t, 2> sizes{layout.wide_size, layout.narrow_size};
  shard(layout, *kept, sizes);
  const MemoryScope scope(*device, MemoryUse::gradients);
  for (const std::size_t i : {0u, 1u})
    if (i == 0 || sizes[i] > 0) buffers_[i] = Tensor::zeros(device, {sizes[i]}, dtypes_[i]);
}

/// Lays out sharded gradients: those of sections that share no place, the places, then the sums
/// that this rank keeps.
void GradientBuffers::shard(const SpaceLayout& layout, const std::vector<SpaceRange>& kept,
                            std::array<std::int64_t, 2>& sizes) {
  const std::vector<Section> sections = sections_of(layout);
  place_of_section_.resize(static_cast<std::size_t>(sections.back().number) + 1);
  for (const std::size_t i : {0u, 1u}) {
    std::int64_t& size = sizes[i];
    size = 0;
    std::int64_t largest = 0;
    for (const Section& section : sections) {
      const Extent& all = section.gradients[i];
      if (section.shares())
        largest = std::max(largest, all.size());
      else
        size += all.size();
    }
    std::size_t next = 0;
    std::int64_t own = 0;
    for (const Section& section : sections) {
      const Extent& all = section.gradients[i];
      if (!section.shares()) {
        written_[i].add(all.begin, all.end, own);
        own += all.size();
        continue;
      }
      const std::size_t place = next++ % places;
      place_of_section_[static_cast<std::size_t>(section.number)] = place;
      written_[i].add(all.begin, all.end, size + static_cast<std::int64_t>(place) * largest);
    }
    size += static_cast<std::int64_t>(places) * largest;
  }
  for (const auto& stretch : layout.stretches) {
    const std::size_t i = stretch.narrow ? 1 : 0;
    for (const SpaceRange& range : kept) {
      const std::int64_t begin = std::max(range.begin, stretch.offset) - stretch.offset;
      const std::int64_t end = std::min(range.end - stretch.offset, stretch.size);
      if (begin >= end) continue;
      const std::int64_t first = stretch.gradient_offset + begin;
      const std::int64_t last = stretch.gradient_offset + end;
      if (!place_of(stretch.section)) {
        kept_[i].append(first, last, *written_[i].find(first, last));
      } else {
        kept_[i].append(first, last, sizes[i]);
        sizes[i] += end - begin;
      }
    }
  }
}

Tensor GradientBuffers::slice(const ElementMap& map, bool narrow, std::int64_t begin,
                              std::int64_t end) const {
  const auto at = map.find(begin, end);
  check(at.has_value(), "gradients were asked for that are not in one piece here");
  return buffers_[narrow ? 1 : 0].slice(*at, {end - begin});
}

Tensor GradientBuffers::written(bool narrow, std::int64_t begin, std::int64_t end) const {
  const std::size_t i = narrow ? 1 : 0;
  return whole_ ? (*whole_)[i].slice(begin, {end - begin}) : slice(written_[i], narrow, begin, end);
}

Tensor GradientBuffers::staying(bool narrow, std::int64_t begin, std::int64_t end) const {
  return whole_ ? (*whole_)[narrow ? 1 : 0].staying(begin, end) : written(narrow, begin, end);
}

Tensor GradientBuffers::kept(bool narrow, std::int64_t begin, std::int64_t end) const {
  const std::size_t i = narrow ? 1 : 0;
  return whole_ ? (*whole_)[i].kept(begin, {end - begin}) : slice(kept_[i], narrow, begin, end);
}

const FlatBuffer::Visitor* GradientBuffers::visitor(int section) const {
  if (!whole_) return nullptr;
  const FlatBuffer::Visitor* const narrow = (*whole_)[1].visitor(section);
  return narrow != nullptr ? narrow : (*whole_)[0].visitor(section);
}

std::optional<std::size_t> GradientBuffers::place_of(int section) const {
  const auto index = static_cast<std::size_t>(section);
  if (index >= place_of_section_.size()) return std::nullopt;
  return place_of_section_[index];
}

}  // namespace sluice
