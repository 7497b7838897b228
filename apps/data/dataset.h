#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/data/data_files.h"
#include "apps/data/text_options.h"
#include "apps/data/text_source.h"
#include "apps/data/tokens/pairs.h"
#include "apps/data/tokens/token_source.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// The files that a flag names, found but not yet read.
struct DataInput {
  DataInput(DataFiles found, const TextOptions& options);

  DataFiles files;
  std::optional<TextSource> text;  ///< none: the files hold tokens
};

/// True if these are tokens with a mask, so pairs.
bool has_pairs(const DataFiles& files);

/// Throws Error (usage) if these tokens were made with another tokenizer than that which `whose`
/// has; see prepared_folder.h.
void require_made_with(const std::string& flag, const DataFiles& files, const Tokenizer& tokenizer,
                       const std::string& whose);

/// Throws Error (usage) if both flags, or several ranks, would read the same pipe.
void require_streams_once(const DataFiles& data, const DataFiles& val, int ranks);

struct Dataset {
  std::shared_ptr<TokenSource> train;
  std::shared_ptr<TokenSource> val;  ///< none: no validation
  std::vector<std::string> notes;    ///< sentences about what was read and left out, if notable
};

/// Opens the data. Token files are used as they are, as pairs if a mask lies beside them (Pairs);
/// text is tokenised into memory, which needs a tokenizer. Validation uses `val` if given, else the
/// val files among the token files, or about a tenth of the text (training_bytes()). Pairs of both
/// have one length.
Dataset open_dataset(const DataInput& data, const DataInput* val, const TextOptions& options,
                     const Tokenizer* tokenizer, std::int64_t vocab_size,
                     const Pairs::Length& length);

/// Opens all tokens of the input (of a folder of tokens: those for validation) without a split.
std::unique_ptr<TokenSource> open_tokens(const std::string& flag, const DataInput& input,
                                         const TextOptions& options, const Tokenizer* tokenizer,
                                         std::int64_t vocab_size, const Pairs::Length& length,
                                         std::vector<std::string>& notes);

/// Reads the whole file. Throws Error if it is empty.
std::string read_text(const std::filesystem::path& file);

}  // namespace sluice
