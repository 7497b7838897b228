#pragma once

#include <string>

#include "engine/io/utf8.h"

namespace sluice {

/// Quotes a text so that a shell reads it back unchanged, on one line. For control characters and
/// bytes that are not UTF-8 the form is $'...' of bash, zsh and ksh.
inline std::string quoted(const std::string& text) {
  const bool plain =
      !text.empty() && text.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                           "_-+=./,:@%") == std::string::npos;
  if (plain) return text;
  const bool foreign = !is_utf8(text);
  const auto is_special = [&](unsigned char c) {
    return c < ' ' || c == 0x7f || (foreign && c > 0x7f);
  };
  bool escaped = false;
  for (const char c : text)
    escaped = escaped || is_special(static_cast<unsigned char>(c));
  constexpr const char* digits = "0123456789abcdef";
  std::string all = escaped ? "$'" : "'";
  for (const char c : text)
    if (is_special(static_cast<unsigned char>(c)))
      all += {'\\', 'x', digits[(c >> 4) & 15], digits[c & 15]};
    else if (escaped && (c == '\'' || c == '\\'))
      all += {'\\', c};
    else if (c == '\'')
      all += "'\\''";
    else
      all += c;
  return all + "'";
}

}  // namespace sluice
