#include "engine/io/utf8.h"

namespace sluice {

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

char32_t utf8_code_point(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead;
  char32_t code_point = lead & (0x7FU >> character.size());
  for (const char next : character.substr(1))
    code_point = code_point << 6 | (static_cast<unsigned char>(next) & 0x3FU);
  return code_point;
}

}  // namespace sluice
