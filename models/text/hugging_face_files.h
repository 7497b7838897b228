#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sluice {

// What Hugging Face's AutoTokenizer opens: tokenizer.json and tokenizer_config.json, for tokenizers
// that are described by a file of this project beside them. This program does not read them.

/// One token a symbol, the place being the id. A stray byte, which valid text does not have, and
/// NUL, which no JSON of this program has, are only decoded: they are written as "<0xFF>". A
/// character that is not among the symbols is refused there too.
void write_character_files(const std::filesystem::path& directory,
                           const std::vector<std::string>& symbols);

/// One token a byte of the text in UTF-8.
void write_byte_files(const std::filesystem::path& directory);

/// Whether a tokenizer.json merges nothing, as those above. Fails (usage) where it cannot be read.
bool merges_nothing(const std::filesystem::path& tokenizer_json);

}  // namespace sluice
