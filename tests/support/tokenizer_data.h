#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice::test {

/// A folder of a GPT-2 tokenizer and of tokenizer_vectors.jsonl, a text, and what is expected of
/// them.
struct TokenizerData {
  std::filesystem::path folder;
  std::string text;
  int vectors = 0;
  std::int64_t vocabulary = 0, characters = 0;
  std::size_t tokens = 0, train_tokens = 0, val_tokens = 0;  ///< 9 tenths of the bytes train
  std::string sha256;                                        ///< of the tokens, 16 bits each
};

/// Returns that of tests/data, and GPT-2's with a book if the folder beside the repository is
/// there.
std::vector<TokenizerData> tokenizer_data();

/// Returns folders of tokenizers: that of tests/data, and GPT-2's if there is one.
std::vector<std::string> tokenizer_folders();

}  // namespace sluice::test
