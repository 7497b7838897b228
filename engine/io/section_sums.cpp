#include "engine/io/section_sums.h"

#include <zlib.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {

SectionSums::SectionSums(std::uint64_t bytes, std::vector<std::uint32_t> sums)
    : bytes_(bytes), sums_(std::move(sums)) {
  const std::uint64_t sections = bytes / section_bytes + (bytes % section_bytes > 0 ? 1 : 0);
  check(sums_.size() == sections, "a file has a checksum for each of its sections");
}

void SectionSums::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::uint64_t begun = bytes_ % section_bytes;
    if (begun == 0) sums_.push_back(0);
    const auto piece = bytes.first(std::min<std::uint64_t>(bytes.size(), section_bytes - begun));
    sums_.back() = crc32_of(piece, sums_.back());
    bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
  }
}

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(
      ::crc32_z(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::size_t bytes) {
  return static_cast<std::uint32_t>(::crc32_combine(first, second, static_cast<z_off_t>(bytes)));
}

}  // namespace sluice
