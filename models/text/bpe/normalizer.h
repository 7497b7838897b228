#pragma once

#include <string>
#include <string_view>

namespace sluice {

/// Returns true if text is in Unicode's normalization form C for certain: it has no character from
/// U+0300 on.
bool is_plainly_nfc(std::string_view text);

/// Returns text in normalization form C, in which a letter and its accent are one character where
/// Unicode has one. Bytes that are not UTF-8 stay as they are.
std::string to_nfc(std::string_view text);

}  // namespace sluice
