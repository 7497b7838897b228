#pragma once

#include "models/text/bpe_tables.h"
#include "models/text/pre_tokenizer.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// GPT-2's byte-level byte-pair encoding. It encodes any bytes, and decode(encode(text)) == text.
/// See PreTokenizer for text that is not valid UTF-8.
class BpeTokenizer final : public Tokenizer {
 public:
  /// `tables` must come from check_bpe() or the functions of bpe_files.h.
  explicit BpeTokenizer(BpeTables tables) : tables_(std::move(tables)) {}

  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::vector<std::int32_t> encode_with_special(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(tables_.symbols.size());
  }
  std::optional<std::int32_t> end_of_text() const override { return tables_.end_of_text; }
  std::string_view kind() const override { return "gpt2"; }
  /// Writes vocab.json, merges.txt and tokenizer_config.json, Hugging Face's file names.
  void save(const std::filesystem::path& directory) const override;

 private:
  class Encoding;

  BpeTables tables_;
  PreTokenizer splitter_;
};

}  // namespace sluice
