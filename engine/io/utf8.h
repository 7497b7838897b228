#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice {

/// Size in bytes (1 to 4) of the UTF-8 character at the start of `text`. 0 if there is none: a
/// stray or cut sequence, an overlong form, a surrogate, or a value above U+10FFFF.
std::size_t utf8_size(std::string_view text);

/// Returns true if all of the text is UTF-8.
bool is_utf8(std::string_view text);

/// Returns the code point of `character`, which holds exactly one valid character.
char32_t utf8_code_point(std::string_view character);

/// Makes foreign text safe for a terminal. Characters that would move the cursor, give a command,
/// change the direction of text or be invisible become visible escapes: control characters except
/// newline and tab ("\x1b", "\u009b"), bidirectional and zero-width ones ("\u202e"), line and
/// paragraph separators, and bytes that are not UTF-8 ("\xff"). Other text is unchanged.
std::string printable(std::string_view text);

/// Same for text that must stay on one line: newline and tab become "\n" and "\t".
std::string printable_line(std::string_view text);

}  // namespace sluice
