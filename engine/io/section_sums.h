#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

/// CRC-32 (zlib's) of each section of a file, so that damage can be located.
class SectionSums {
 public:
  static constexpr std::uint64_t section_bytes = std::uint64_t{4} << 20;

  SectionSums() = default;
  /// Takes the checksums of a file of `bytes` bytes; Error unless there is one per section.
  SectionSums(std::uint64_t bytes, std::vector<std::uint32_t> sums);

  /// Appends the next bytes of the file.
  void add(std::span<const std::byte> bytes);

  std::uint64_t bytes() const { return bytes_; }
  /// Checksums in file order; only the last section may be shorter.
  const std::vector<std::uint32_t>& sums() const { return sums_; }

 private:
  std::uint64_t bytes_ = 0;
  std::vector<std::uint32_t> sums_;
};

/// CRC-32 of one piece of memory.
std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0);
/// Returns the CRC-32 of two pieces one after the other. `bytes`: the size of the second.
std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::size_t bytes);

}  // namespace sluice
