#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sluice {

// Files for Hugging Face's AutoTokenizer: tokenizer.json and tokenizer_config.json, for tokenizers
// that this project describes in a file of its own beside them. This program does not read them.

/// Writes a tokenizer with one token per symbol, whose index is its id. Stray bytes and NUL are
/// only decoded, since valid text has no stray byte and no JSON of this program has NUL; they are
/// written as "<0xFF>". That tokenizer, too, refuses characters that are not among the symbols.
void write_character_files(const std::filesystem::path& directory,
                           const std::vector<std::string>& symbols);

/// Writes a tokenizer with one token per byte of the text in UTF-8.
void write_byte_files(const std::filesystem::path& directory);

/// Returns true for a tokenizer.json without merges, as above. Fails (usage) if it is unreadable.
bool merges_nothing(const std::filesystem::path& tokenizer_json);

}  // namespace sluice
