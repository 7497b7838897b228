#pragma once

#include <string>
#include <string_view>

namespace sluice {

/// Makes foreign text safe for a terminal. Characters that would move the cursor, give a command,
/// change the direction of text or be invisible become visible escapes: control characters except
/// newline and tab ("\x1b", "\u009b"), bidirectional and zero-width ones ("\u202e"), line and
/// paragraph separators, and bytes that are not UTF-8 ("\xff"). Other text is unchanged.
std::string printable(std::string_view text);

/// Same for text that must stay on one line: newline and tab become "\n" and "\t".
std::string printable_line(std::string_view text);

}  // namespace sluice
