#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

/// CRC-32 (zlib's) of a file, section by section, so that damage has a place.
class SectionSums {
 public:
  static constexpr std::uint64_t section_bytes = std::uint64_t{4} << 20;

  SectionSums() = default;
  /// Those of a file of so many bytes; Error unless there is one for each section.
  SectionSums(std::uint64_t bytes, std::vector<std::uint32_t> sums);

  /// The next bytes of the file.
  void add(std::span<const std::byte> bytes);

  std::uint64_t bytes() const { return bytes_; }
  /// In order; only the last may be of a shorter section.
  const std::vector<std::uint32_t>& sums() const { return sums_; }

 private:
  std::uint64_t bytes_ = 0;
  std::vector<std::uint32_t> sums_;
};

/// Of one piece of memory.
std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace sluice
