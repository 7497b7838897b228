#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

/// A hash of a series of fields: FNV-1a, 64 bits. It tells contents apart that differ by mistake,
/// not by intent.
class ContentHash {
 public:
  /// The length comes first, so that neighbouring fields cannot run into each other.
  void add(std::string_view field);
  void add(std::int64_t number);

  /// Returns 16 hexadecimal digits.
  std::string text() const;

 private:
  void add_byte(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3; }

  std::uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace sluice
