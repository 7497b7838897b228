#pragma once

#include <filesystem>

#include "models/text/bpe/bpe_tables.h"

namespace sluice {

/// Reads GPT-2's pair of files: `vocabulary` is vocab.json or encoder.json, `merges` is merges.txt
/// or vocab.bpe (Windows line ends and a missing "#version" line are accepted). Fails (usage) if a
/// file is missing, over 100 MB or malformed, or if check_bpe() refuses the tables.
BpeTables read_bpe_files(const std::filesystem::path& vocabulary,
                         const std::filesystem::path& merges);

/// Throws Error (usage) if tokenizer_config.json beside vocab.json and merges.txt says that they
/// are of another tokenizer: the rule by which text is split is in neither of the two.
void require_gpt2_tokenizer(const std::filesystem::path& directory);

/// Writes vocab.json, merges.txt and tokenizer_config.json of GPT-2's tokenizer, which Hugging Face
/// can also open.
void write_bpe_files(const std::filesystem::path& directory, const BpeTables& tables);

}  // namespace sluice
