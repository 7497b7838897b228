#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/cli/command_line.h"

namespace sluice {

enum class TextFormat : std::uint8_t { text, jsonl };
inline constexpr Choices<TextFormat, 2> text_formats{
    {{"text", TextFormat::text}, {"jsonl", TextFormat::jsonl}}};

/// The tokenizers, by the names that --tokenizer and Tokenizer::kind() use.
enum class TokenizerKind : std::uint8_t { bytes, chars, gpt2, bpe };
inline constexpr Choices<TokenizerKind, 4> tokenizers{{{"bytes", TokenizerKind::bytes},
                                                       {"chars", TokenizerKind::chars},
                                                       {"gpt2", TokenizerKind::gpt2},
                                                       {"bpe", TokenizerKind::bpe}}};

/// The fields of a JSON line that is a pair.
struct PairFields {
  std::string prompt = "prompt", completion = "completion";
};

/// Options of how text is read and divided; the same for every program that does so.
struct TextOptions {
  std::optional<TextFormat> format{};  ///< none: by the file's name
  std::string field = "text";          ///< name of the text in a JSON line
  bool skip_bad_lines = false;
  bool may_skip = true;  ///< the program has --skip-bad-lines
  bool special = false;  ///< names of special tokens in text become those tokens
  std::uint64_t split_seed = 1;
  std::optional<PairFields> pairs{};  ///< none: a line is one text
};

/// Declares the options under the current heading of --help; `divided`: some of the text may be set
/// aside for validation.
void declare_text_options(CommandLine& line, TextOptions& options, bool divided = true);

}  // namespace sluice
