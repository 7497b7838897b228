#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "models/text/bpe/bpe_tables.h"

namespace sluice {

/// Texts of a tokenizer's files by their names.
using TokenizerFiles = std::map<std::string, std::string>;

/// Reads Hugging Face's tokenizer.json of a byte-level BPE whose text is split by regular
/// expressions, such as those of GPT-2, SmolLM2, Llama 3, Qwen and GPT-NeoX, and the files beside
/// it. tokenizer_config.json or special_tokens_map.json names the token that ends a text. Added
/// tokens become part of the vocabulary.
///
/// Throws Error (usage), naming the file and the value, for a setting that would make ids differ
/// from Hugging Face's (another model, normalizer or split), for a file that is malformed, and if
/// check_bpe() refuses the tables.
BpeTables read_tokenizer_json(const std::filesystem::path& file);
/// The same for files that have been read, of which tokenizer.json must be one. Errors name `file`,
/// which stands for it.
BpeTables parse_tokenizer_json(TokenizerFiles files, const std::filesystem::path& file);

}  // namespace sluice
