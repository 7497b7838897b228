#pragma once

#include <cstddef>
#include <string_view>

namespace sluice {

/// Size in bytes (1 to 4) of the UTF-8 character at the start of `text`. 0 if there is none: a
/// stray or cut sequence, an overlong form, a surrogate, or a value above U+10FFFF.
std::size_t utf8_size(std::string_view text);

/// Returns the code point of `character`, which holds exactly one valid character.
char32_t utf8_code_point(std::string_view character);

}  // namespace sluice
