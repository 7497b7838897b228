#pragma once

#include <cstdint>
#include <string>

#include "apps/train/command_line.h"

namespace sluice {

/// How text is read and divided, the same for every program that does so.
struct TextOptions {
  std::string format = "auto";  ///< or "text", "jsonl"
  std::string field = "text";   ///< of a JSON line
  bool skip_bad_lines = false;
  bool special = false;  ///< "<|endoftext|>" in text is the token of that name
  std::uint64_t split_seed = 1;
};

/// Under the heading that is open.
void declare_text_options(CommandLine& line, TextOptions& options);

}  // namespace sluice
