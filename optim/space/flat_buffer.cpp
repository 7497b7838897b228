#include "optim/space/flat_buffer.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

struct RestingSection {
  int number;
  std::int64_t size;
};

std::vector<RestingSection> resting_sections(const std::vector<FlatBuffer::Part>& parts) {
  std::vector<RestingSection> sections;
  for (const auto& part : parts) {
    if (!part.resting) continue;
    if (sections.empty() || sections.back().number != *part.resting)
      sections.push_back({*part.resting, 0});
    sections.back().size += part.size;
  }
  return sections;
}

}  // namespace

FlatBuffer::FlatBuffer(const std::vector<Part>& parts, const DevicePtr& device,
                       const DevicePtr& host, DType dtype, MemoryUse use) {
  const std::vector<RestingSection> sections = resting_sections(parts);
  std::int64_t staying = 0, resting = 0, largest = 0;
  for (const Part& part : parts)
    (part.resting ? resting : staying) += part.size;
  for (const RestingSection& section : sections)
    largest = std::max(largest, section.size);
  const auto start_of = [&](std::size_t place) {
    return staying + static_cast<std::int64_t>(place) * largest;
  };
  {
    const MemoryScope scope(*device, use);
    on_device_ = Tensor::zeros(device, {sections.empty() ? staying : start_of(places)}, dtype);
  }
  if (!sections.empty()) {
    check(host != nullptr, "what rests in host memory needs host memory");
    const MemoryScope scope(*host, use);
    on_host_ = Tensor::zeros(host, {resting}, dtype);
    visitors_.resize(static_cast<std::size_t>(sections.back().number) + 1);
  }
  std::int64_t home = 0;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const Shape size{sections[i].size};
    visitors_[static_cast<std::size_t>(sections[i].number)] =
        Visitor{.home = on_host_.slice(home, size),
                .visiting = on_device_.slice(start_of(i % places), size),
                .place = i % places};
    home += sections[i].size;
  }
  std::int64_t here = 0, at_home = 0, in_place = 0;
  std::size_t next = 0;  // the section after the one that `in_place` counts in
  for (const Part& part : parts) {
    const std::int64_t end = part.begin + part.size;
    if (!part.resting) {
      staying_map_.append(part.begin, end, here);
      here += part.size;
      continue;
    }
    if (next < sections.size() && sections[next].number == *part.resting) {
      ++next;
      in_place = 0;
    }
    visiting_map_.append(part.begin, end, start_of((next - 1) % places) + in_place);
    host_map_.append(part.begin, end, at_home);
    in_place += part.size;
    at_home += part.size;
  }
}

Tensor FlatBuffer::slice(std::int64_t begin, const Shape& shape, std::int64_t spare_rows) const {
  const std::int64_t end = begin + element_count(shape);
  const auto stays = staying_map_.find(begin, end);
  const auto at = stays ? stays : visiting_map_.find(begin, end);
  check(at.has_value(), "values were asked for that are not in one piece");
  return on_device_.slice(*at, shape, spare_rows);
}

Tensor FlatBuffer::staying(std::int64_t begin, std::int64_t end) const {
  const auto [first, last] = staying_map_.places(begin, end);
  return on_device_.slice(first, {last - first});
}

Tensor FlatBuffer::kept(std::int64_t begin, const Shape& shape) const {
  const auto at = host_map_.find(begin, begin + element_count(shape));
  return at ? on_host_.slice(*at, shape) : slice(begin, shape);
}

const Tensor& FlatBuffer::flat() const {
  check(visitors_.empty(), "some values rest in host memory");
  return on_device_;
}

const FlatBuffer::Visitor* FlatBuffer::visitor(int section) const {
  const auto index = static_cast<std::size_t>(section);
  return index < visitors_.size() && visitors_[index] ? &*visitors_[index] : nullptr;
}

}  // namespace sluice
