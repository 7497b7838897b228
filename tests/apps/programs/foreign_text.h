#pragma once

#include <algorithm>
#include <filesystem>
#include <string>

#include "engine/io/utf8.h"
#include "tests/support/byte_model_folder.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"

// Untrusted text on its way to a terminal: control characters of both kinds, a change of direction
// and an invisible character.

namespace sluice::test {

/// A terminal command (OSC 0), a C1 control, right-to-left override, zero-width space.
inline const std::string hostile =
    "a\x1b]0;owned\x07"
    "b\xC2\x9B"
    "2J\xE2\x80\xAE"
    "c\xE2\x80\x8B"
    "d";

/// Returns true if the output, without a terminal's own carriage returns, can do no harm.
inline bool safe(std::string text) {
  std::erase(text, '\r');
  return printable(text) == text;
}

/// A tiny model with a tokenizer, a text, and room for files with untrusted words.
struct ForeignFolder : ByteModelFolder {
  void write(const std::filesystem::path& name, const std::string& text) const {
    std::filesystem::create_directories((path() / name).parent_path());
    write_file(path() / name, text);
  }
  std::string read(const std::filesystem::path& name) const { return read_file(path() / name); }
};

/// Returns the flags of a one-step training that leaves nothing behind, followed by `more`.
inline Arguments tiny_training(const Arguments& more) {
  Arguments all = words("--threads 1 --batch-size 2 --steps 1 --val-every 0 --sample-tokens 0");
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace sluice::test
