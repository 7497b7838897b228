#pragma once

#include <cstddef>
#include <string>

namespace sluice {

/// Parses a size in bytes. "8GiB", "8G" and "8g" are the same, "1.5GB" counts in 1000^3 bytes,
/// "4194304" in bytes. Case does not matter, and one space may precede the unit. Throws Error
/// (usage) naming the flag for other text and below `least`: under a mebibyte of memory a unit was
/// forgotten.
std::size_t parse_bytes(const std::string& flag, const std::string& text,
                        std::size_t least = std::size_t{1} << 20);
/// Returns the shortest exact spelling that parse_bytes reads back.
std::string spell_bytes(std::size_t bytes);

/// Bytes in MiB and GiB, for tables.
inline double mib(double bytes) {
  return bytes / (1 << 20);
}
inline double gib(double bytes) {
  return bytes / (1 << 30);
}
inline double mib(std::size_t bytes) {
  return mib(static_cast<double>(bytes));
}
inline double gib(std::size_t bytes) {
  return gib(static_cast<double>(bytes));
}

}  // namespace sluice
