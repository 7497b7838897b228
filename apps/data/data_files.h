#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/data/skipped.h"

namespace sluice {

/// A text file. TextSource finds its documents.
struct TextFile {
  std::filesystem::path path;  ///< "-": standard input
  bool stream = false;         ///< it can be read only once, like a pipe
  bool as_is = false;          ///< the only file, and named itself: it is read whatever it holds
};

/// The files that the values of one flag stand for: of tokens or of text, never both.
struct DataFiles {
  std::vector<TextFile> texts;
  std::vector<std::filesystem::path> tokens;
  /// Files named for validation. If all are and `folder` is empty, they are in `tokens` instead.
  std::vector<std::filesystem::path> val_tokens;
  std::filesystem::path folder;  ///< the folder that has these token files; else empty
  Skipped skipped;               ///< other files in the folders

  /// A name for messages: "corpus", "a.txt and 3 more".
  std::string name;
};

/// Finds the files. Each of `names` is a file, a folder (its text files, recursively and by path,
/// or its token files; see docs/reference/data.md), a pattern of files and folders, or "-". They
/// keep their order. Throws Error (usage) if there is nothing, or if inputs do not go together.
DataFiles find_data(const std::string& flag, const std::vector<std::string>& names);

/// Returns the path of the text that ships with the program: its own documentation and sources.
std::string shipped_text();

}  // namespace sluice
