#pragma once

#include <string>

namespace sluice {

/// Quotes a text so that a shell reads it back unchanged.
inline std::string quoted(const std::string& text) {
  const bool plain =
      !text.empty() && text.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                           "_-+=./,:@%") == std::string::npos;
  if (plain) return text;
  std::string all = "'";
  for (const char c : text)
    all += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return all + "'";
}

}  // namespace sluice
