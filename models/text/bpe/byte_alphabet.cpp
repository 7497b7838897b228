#include "models/text/bpe/byte_alphabet.h"

#include <array>

#include "engine/io/utf8.h"

namespace sluice {
namespace {

constexpr char32_t first_moved = 0x100;
constexpr std::size_t moved_bytes = 68;

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<unsigned char, first_moved + moved_bytes> byte{};  // byte of each character, if any
};

constexpr Alphabet alphabet = [] {
  Alphabet table;
  char32_t next = first_moved;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t character = stands_for_itself(byte) ? byte : next++;
    table.character[byte] = character;
    table.byte[character] = static_cast<unsigned char>(byte);
  }
  return table;
}();

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const char32_t character = alphabet.character[static_cast<unsigned char>(byte)];
    if (character < 0x80) {
      text.push_back(static_cast<char>(character));
    } else {
      text.push_back(static_cast<char>(0xC0 | character >> 6));
      text.push_back(static_cast<char>(0x80 | (character & 0x3F)));
    }
  }
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const auto size = utf8_size(text);
    if (size == 0) return std::nullopt;
    const char32_t character = utf8_code_point(text.substr(0, size));
    if (character >= alphabet.byte.size()) return std::nullopt;
    const auto byte = alphabet.byte[character];
    if (alphabet.character[byte] != character) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    text.remove_prefix(size);
  }
  return bytes;
}

}  // namespace sluice
