#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/document_split.h"
#include "apps/data/text_source.h"
#include "apps/data/turns.h"
#include "models/text/char_tokenizer.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// Throws Error (usage) if --special is given and the tokenizer has no <|endoftext|> token.
void require_special(const Tokenizer& tokenizer, bool special);

/// Returns the ids of `text`; `special` as in TextOptions.
std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text, bool special);

/// Returns a tokenizer of all characters in the documents and in their separators.
CharTokenizer characters_of(const TextSource& source);

/// Encodes documents as one stream of tokens. It puts the tokenizer's end-of-text token between two
/// documents; without such a token, a newline unless the first document ends in one.
class DocumentEncoder {
 public:
  using Sink = std::function<void(std::span<const std::int32_t>)>;
  /// Only the turns of this rank go to `sink`; the ranks add the same documents.
  DocumentEncoder(const Tokenizer& tokenizer, bool special, Sink sink, Turns turns = {});

  /// Encodes in pieces of about a megabyte, which give the same tokens. Errors name the document.
  void add(const Document& document);

  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return tokens_; }  ///< of this rank's turns

 private:
  void give(const std::vector<std::int32_t>& ids);

  const Tokenizer& tokenizer_;
  bool special_;
  Sink sink_;
  Turns turns_;
  bool line_open_ = false;
  std::int64_t documents_ = 0;
  std::int64_t tokens_ = 0;
};

/// The result of the first reading, before anything is encoded.
struct TextScan {
  std::vector<DocumentFacts> documents;
  TextReport report;
};
/// Warns if --special seems to have been forgotten; `where` names the flag of the text.
TextScan scan(const TextSource& source, const Tokenizer& tokenizer, bool special,
              const std::string& where);

/// Reads the source again: the first `training` bytes of each document go to `train`, the rest to
/// `val`. `advance` is told how many bytes are done. Throws Error if the text has changed since the
/// scan.
void divide_text(const TextSource& source, const TextScan& scan,
                 std::span<const std::uint64_t> training, const TextSource::Take& train,
                 const TextSource::Take& val,
                 const std::function<void(std::uint64_t)>& advance = {});
/// The same, and encodes both.
void encode_text(const TextSource& source, const TextScan& scan,
                 std::span<const std::uint64_t> training, DocumentEncoder& train,
                 DocumentEncoder& val, const std::function<void(std::uint64_t)>& advance = {});

}  // namespace sluice
