#include "models/text/char_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "engine/io/utf8.h"
#include "kernels/base/error.h"
#include "models/text/content_hash.h"
#include "models/text/hugging_face_files.h"

namespace sluice {
namespace {

using nlohmann::json;

/// Returns the first symbol of `text`, which is not empty: a character or a stray byte.
std::string_view first_symbol(std::string_view text) {
  return text.substr(0, std::max<std::size_t>(1, utf8_size(text)));
}

bool is_stray_byte(std::string_view symbol) {
  return utf8_size(symbol) == 0;
}

std::string describe(std::string_view symbol) {
  if (is_stray_byte(symbol))
    return fmt::format("the byte 0x{:02X} (not valid UTF-8)",
                       static_cast<unsigned char>(symbol[0]));
  return fmt::format("the character {} (U+{:04X})", quote(symbol),
                     static_cast<std::uint32_t>(utf8_code_point(symbol)));
}

/// Stray bytes and NUL are written as numbers, since they could not be read back as strings.
bool is_numeric(std::uint64_t byte) {
  return byte == 0 || (byte >= 0x80 && byte <= 0xFF);
}

json to_json(const std::string& symbol) {
  if (symbol.size() == 1 && is_numeric(static_cast<unsigned char>(symbol[0])))
    return static_cast<unsigned char>(symbol[0]);
  return symbol;
}

/// Returns the symbol that an entry of chars.json stands for; empty if the entry is invalid.
std::string from_json(const json& entry) {
  if (entry.is_string()) {
    const auto text = entry.get<std::string>();
    return !text.empty() && utf8_size(text) == text.size() ? text : std::string();
  }
  if (!entry.is_number_unsigned()) return {};
  const auto byte = entry.get<std::uint64_t>();
  return is_numeric(byte) ? std::string(1, static_cast<char>(byte)) : std::string();
}

}  // namespace

void CharTokenizer::Vocabulary::add(std::string_view text) {
  std::unordered_set<std::string_view> distinct;
  for (std::size_t at = 0; at < text.size();) {
    const auto symbol = first_symbol(text.substr(at));
    distinct.insert(symbol);
    at += symbol.size();
  }
  symbols_.insert(distinct.begin(), distinct.end());
}

CharTokenizer::CharTokenizer(const Vocabulary& vocabulary)
    : symbols_(vocabulary.symbols_.begin(), vocabulary.symbols_.end()) {
  if (symbols_.empty())
    fail("a character vocabulary cannot be made from an empty text", ErrorKind::usage);
}

CharTokenizer CharTokenizer::from_text(std::string_view text) {
  Vocabulary vocabulary;
  vocabulary.add(text);
  return CharTokenizer(vocabulary);
}

CharTokenizer CharTokenizer::load(const std::filesystem::path& file) {
  const auto root = read_json_file(file, max_text_file);
  if (!root.is_object() || !root.contains("characters") || !root["characters"].is_array() ||
      root["characters"].empty())
    fail(fmt::format("{} has no list \"characters\" with at least one entry", file.string()),
         ErrorKind::usage);
  std::vector<std::string> symbols;
  for (const auto& entry : root["characters"]) {
    auto symbol = from_json(entry);
    if (symbol.empty())
      fail(fmt::format("entry {} of \"characters\" in {} is neither one character nor a byte from "
                       "128 to 255",
                       symbols.size(), file.string()),
           ErrorKind::usage);
    if (!symbols.empty() && symbol <= symbols.back())
      fail(fmt::format("entry {} of \"characters\" in {}, {}, is not in ascending order",
                       symbols.size(), file.string(), describe(symbol)),
           ErrorKind::usage);
    symbols.push_back(std::move(symbol));
  }
  return CharTokenizer(std::move(symbols));
}

std::vector<std::int32_t> CharTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; at < text.size();) {
    const auto symbol = first_symbol(text.substr(at));
    const auto found = std::lower_bound(symbols_.begin(), symbols_.end(), symbol);
    if (found == symbols_.end() || *found != symbol)
      fail(fmt::format("{} at byte {} of the text is not in this vocabulary of {} characters: "
                       "leave it out, or use a tokenizer made from text that has it",
                       describe(symbol), at, symbols_.size()),
           ErrorKind::usage);
    ids.push_back(static_cast<std::int32_t>(found - symbols_.begin()));
    at += symbol.size();
  }
  return ids;
}

std::string CharTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const auto id : ids)
    text += symbols_[index(id)];
  return text;
}

std::string CharTokenizer::content_hash() const {
  ContentHash hash;
  hash.add("chars");
  for (const std::string& symbol : symbols_)
    hash.add(symbol);
  return hash.text();
}

void CharTokenizer::save(const std::filesystem::path& directory) const {
  json characters = json::array();
  for (const auto& symbol : symbols_)
    characters.push_back(to_json(symbol));
  write_text_file(directory / "chars.json",
                  json{{"characters", std::move(characters)}}.dump() + "\n");
  write_character_files(directory, symbols_);
}

}  // namespace sluice
