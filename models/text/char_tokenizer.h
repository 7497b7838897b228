#pragma once

#include <set>

#include "models/text/tokenizer.h"

namespace sluice {

/// One token per character, as in nanoGPT: the vocabulary is the distinct Unicode characters of a
/// training text in ascending order.
///
/// In text that is not valid UTF-8, every byte at which no valid character begins is a symbol of
/// its own, so that decode(encode(text)) == text for any text made of known symbols. Symbols are
/// ordered by their bytes, which for valid text is the order of the code points.
class CharTokenizer final : public Tokenizer {
 public:
  /// Collects the distinct characters of texts.
  class Vocabulary;
  /// Fails (usage) if the vocabulary is empty.
  explicit CharTokenizer(const Vocabulary& vocabulary);
  /// Makes the vocabulary of `text`; fails (usage) if it is empty.
  static CharTokenizer from_text(std::string_view text);
  /// Reads the chars.json that save() wrote; fails (usage) if it is malformed.
  static CharTokenizer load(const std::filesystem::path& file);

  /// Fails (usage) at a character outside the vocabulary, naming it and its byte offset.
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(symbols_.size()); }
  std::string_view kind() const override { return "chars"; }
  std::string content_hash() const override;
  /// Writes chars.json: {"characters": [...]} in the order of the ids, with a character as a string
  /// and a stray byte or NUL as a number. Also writes the files of write_character_files().
  void save(const std::filesystem::path& directory) const override;

 private:
  explicit CharTokenizer(std::vector<std::string> symbols) : symbols_(std::move(symbols)) {}

  std::vector<std::string> symbols_;  // ascending; the id of a symbol is its index
};

class CharTokenizer::Vocabulary {
 public:
  void add(std::string_view text);

 private:
  friend CharTokenizer;
  std::set<std::string, std::less<>> symbols_;
};

}  // namespace sluice
