#pragma once

#include <cstddef>
#include <string_view>

namespace sluice {

/// Size in bytes (1 to 4) of the UTF-8 character that `text` begins with; 0 where it begins with
/// none: a stray or cut sequence, an overlong form, a surrogate, or a value above U+10FFFF.
std::size_t utf8_size(std::string_view text);

/// The code point of one valid character, all of `character`.
char32_t utf8_code_point(std::string_view character);

}  // namespace sluice
