#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/data_files.h"
#include "apps/train/text_options.h"
#include "apps/train/text_source.h"
#include "apps/train/token_source.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// What a flag names, found but not yet read.
struct DataInput {
  DataInput(DataFiles found, const TextOptions& options);

  DataFiles files;
  std::optional<TextSource> text;  ///< none: files of tokens
};

/// Fails (usage) where a pipe would be read by several: by both flags, or by each of several ranks.
void require_streams_once(const DataFiles& data, const DataFiles& val, int ranks);

struct Dataset {
  std::unique_ptr<TokenSource> train;
  std::unique_ptr<TokenSource> val;  ///< none: no validation
  std::vector<std::string> notes;    ///< sentences on what was read and left out, where it is news
};

/// Tokens as they are; text is tokenised into memory, which needs a tokenizer. Validation is `val`
/// if given; else the val files among those of tokens, or about a tenth of the text
/// (training_bytes()).
Dataset open_dataset(const DataInput& data, const DataInput* val, const TextOptions& options,
                     const Tokenizer* tokenizer, std::int64_t vocab_size);

/// All tokens of the input, of a folder of tokens those for validation; nothing is set apart.
std::unique_ptr<TokenSource> open_tokens(const std::string& flag, const DataInput& input,
                                         const TextOptions& options, const Tokenizer* tokenizer,
                                         std::int64_t vocab_size, std::vector<std::string>& notes);

/// The whole file; an empty one is refused.
std::string read_text(const std::filesystem::path& file);

}  // namespace sluice
