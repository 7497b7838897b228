#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/document_split.h"
#include "apps/train/text_source.h"
#include "models/text/char_tokenizer.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// Fails (usage) where --special is asked of a tokenizer that has no such token.
void require_special(const Tokenizer& tokenizer, bool special);

/// The ids of `text`; `special` as in TextOptions.
std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text, bool special);

/// The characters of all documents, and what separates them.
CharTokenizer characters_of(const TextSource& source);

/// Turns documents into one stream of tokens. Between two of them is the tokenizer's end-of-text
/// token, or, where it has none, a newline unless the first ends in one.
class DocumentEncoder {
 public:
  using Sink = std::function<void(std::span<const std::int32_t>)>;
  DocumentEncoder(const Tokenizer& tokenizer, bool special, Sink sink);

  /// In pieces of about a megabyte, which give the tokens of the whole. Errors name the document.
  void add(const Document& document);

  std::int64_t documents() const { return documents_; }
  std::uint64_t tokens() const { return tokens_; }

 private:
  void give(const std::vector<std::int32_t>& ids);

  const Tokenizer& tokenizer_;
  bool special_;
  Sink sink_;
  bool line_open_ = false;
  std::int64_t documents_ = 0;
  std::uint64_t tokens_ = 0;
};

/// What a first reading has found, before anything is turned into tokens.
struct TextScan {
  std::vector<DocumentFacts> documents;
  TextReport report;
};
TextScan scan(const TextSource& source);

/// The second reading: the first `training` bytes of each document go to `train`, the rest to
/// `val`. `advance` hears of bytes that are done. Error where the text is no longer what was
/// scanned.
void encode_text(const TextSource& source, const TextScan& scan,
                 std::span<const std::uint64_t> training, DocumentEncoder& train,
                 DocumentEncoder& val, const std::function<void(std::uint64_t)>& advance = {});

}  // namespace sluice
