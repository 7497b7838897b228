#pragma once

#include <cstddef>
#include <string>

namespace sluice {

/// "8GiB", "8G" and "8g" are the same; "1.5GB" is of 1000^3 bytes; "4194304" is bytes. Letters may
/// be small or large, and one space may stand before the unit. Throws Error (usage) naming the flag
/// otherwise, and where they are fewer than `least`: below a mebibyte of memory a unit was
/// forgotten.
std::size_t parse_bytes(const std::string& flag, const std::string& text,
                        std::size_t least = std::size_t{1} << 20);
/// The shortest exact spelling that parse_bytes reads back.
std::string spell_bytes(std::size_t bytes);

}  // namespace sluice
