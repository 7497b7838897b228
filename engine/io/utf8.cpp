#include "engine/io/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace sluice {
namespace {

struct Range {
  char32_t first, last;
};
/// Invisible or control characters beyond ASCII.
constexpr Range unseen[] = {{0x80, 0x9F},     {0x061C, 0x061C}, {0x200B, 0x200F}, {0x2028, 0x202E},
                            {0x2060, 0x2060}, {0x2066, 0x2069}, {0xFEFF, 0xFEFF}};

bool is_unseen(char32_t c) {
  return std::ranges::any_of(unseen, [c](const Range& r) { return r.first <= c && c <= r.last; });
}

std::string escaped(std::string_view text, bool one_line) {
  std::string safe;
  safe.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = utf8_size(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(size, 1));
    const auto byte = static_cast<unsigned char>(character[0]);
    if ((byte == '\n' || byte == '\t') && one_line)
      safe += byte == '\n' ? "\\n" : "\\t";
    else if (size == 0 || (byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7F)
      fmt::format_to(std::back_inserter(safe), "\\x{:02x}", byte);
    else if (const char32_t point = utf8_code_point(character); size > 1 && is_unseen(point))
      fmt::format_to(std::back_inserter(safe), "\\u{:04x}", static_cast<unsigned>(point));
    else
      safe += character;
    text.remove_prefix(character.size());
  }
  return safe;
}

}  // namespace

std::size_t utf8_size(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;

  const std::size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() < size) return 0;
  for (std::size_t at = 1; at < size; ++at)
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) return 0;

  const auto second = static_cast<unsigned char>(text[1]);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0;
  const bool too_large = lead == 0xF4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : size;
}

bool is_utf8(std::string_view text) {
  while (const std::size_t size = utf8_size(text))
    text.remove_prefix(size);
  return text.empty();
}

char32_t utf8_code_point(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead;
  char32_t code_point = lead & (0x7FU >> character.size());
  for (const char next : character.substr(1))
    code_point = code_point << 6 | (static_cast<unsigned char>(next) & 0x3FU);
  return code_point;
}

std::string printable(std::string_view text) {
  return escaped(text, false);
}

std::string printable_line(std::string_view text) {
  return escaped(text, true);
}

}  // namespace sluice
