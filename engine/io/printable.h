#pragma once

#include <string>
#include <string_view>

namespace sluice {

/// Foreign text as a terminal may have it. What would move the cursor, give the terminal an order,
/// change the direction of text or not be seen becomes a visible escape: control characters but
/// newline and tab ("\x1b", "\u009b"), bidirectional and zero-width ones ("\u202e"), separators of
/// lines and paragraphs, and bytes that are no UTF-8 ("\xff"). All other text stays as it is.
std::string printable(std::string_view text);

/// The same where a newline or a tab would make a line of its own: "\n", "\t".
std::string printable_line(std::string_view text);

}  // namespace sluice
