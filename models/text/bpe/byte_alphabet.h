#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

/// Writes bytes as GPT-2's files show them, each as a printable character: most Latin-1 characters
/// stand for themselves, the other 68 bytes are U+0100 to U+0143 (a space is U+0120).
std::string to_byte_alphabet(std::string_view bytes);

/// Returns the bytes that `text` shows; nothing if it has a character outside the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace sluice
