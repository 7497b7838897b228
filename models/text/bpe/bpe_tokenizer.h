#pragma once

#include "models/text/bpe/added_tokens.h"
#include "models/text/bpe/bpe_tables.h"
#include "models/text/bpe/pre_tokenizer.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// Byte-level byte-pair encoding: GPT-2's, or another one that splits text otherwise (Llama 3,
/// SmolLM2). decode(encode(text)) is the text, or its normal form if the tokenizer asks for one. It
/// encodes any bytes that have symbols; Error (usage) for others. See PreTokenizer for text that is
/// not valid UTF-8.
class BpeTokenizer final : public Tokenizer {
 public:
  /// `tables` must come from check_bpe(), bpe_files.h or tokenizer_json.h.
  explicit BpeTokenizer(BpeTables tables);

  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::vector<std::int32_t> encode_with_special(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(tables_.symbols.size());
  }
  std::optional<std::int32_t> end_of_text() const override { return tables_.end_of_text; }
  bool has_special() const override;
  void find_special(std::string_view text,
                    const std::function<void(std::string_view)>& found) const override;
  std::vector<std::int32_t> begin_of_text() const override { return tables_.begin; }
  std::string_view kind() const override { return tables_.is_gpt2() ? "gpt2" : "bpe"; }
  std::string content_hash() const override;
  /// Writes vocab.json, merges.txt and tokenizer_config.json, Hugging Face's file names. What is
  /// not GPT-2's is written as it was read: tokenizer.json and tokenizer_config.json.
  void save(const std::filesystem::path& directory) const override;

 private:
  class Encoding;
  std::vector<std::int32_t> encode(std::string_view text, bool special) const;

  BpeTables tables_;
  PreTokenizer splitter_;
  AddedTokens added_, added_normalized_;  ///< those found before and after text is normalized
  std::unordered_map<std::string_view, std::int32_t> id_of_piece_;  ///< for whole_pieces
};

}  // namespace sluice
