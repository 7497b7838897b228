#include "engine/io/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "engine/io/utf8.h"

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

std::string printable(std::string_view text) {
  return escaped(text, false);
}

std::string printable_line(std::string_view text) {
  return escaped(text, true);
}

}  // namespace sluice
