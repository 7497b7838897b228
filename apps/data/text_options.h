#pragma once

#include <cstdint>
#include <string>

#include "apps/cli/command_line.h"

namespace sluice {

/// Options of how text is read and divided; the same for every program that does so.
struct TextOptions {
  std::string format = "auto";  ///< or "text", "jsonl"
  std::string field = "text";   ///< name of the text in a JSON line
  bool skip_bad_lines = false;
  bool special = false;  ///< "<|endoftext|>" in text is the token of that name
  std::uint64_t split_seed = 1;
};

/// Declares the options under the current heading of --help.
void declare_text_options(CommandLine& line, TextOptions& options);

}  // namespace sluice
