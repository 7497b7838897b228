#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/train/skipped.h"

namespace sluice {

/// A file of text. Its documents are the business of TextSource.
struct TextFile {
  std::filesystem::path path;  ///< "-": the standard input
  bool stream = false;         ///< it can be read only once, as a pipe
  bool as_is = false;          ///< the only one, and named itself: it is read whatever it holds
};

/// The files that the values of one flag stand for: of tokens or of text, never both.
struct DataFiles {
  std::vector<TextFile> texts;
  std::vector<std::filesystem::path> tokens;
  /// Those named for validation; where all are and they are no folder, they are in `tokens`.
  std::vector<std::filesystem::path> val_tokens;
  std::filesystem::path folder;  ///< that the tokens are all of; else empty
  Skipped skipped;               ///< what the folders hold beside

  /// For messages: "corpus", "a.txt and 3 more".
  std::string name;
};

/// Finds them. Each of `names` is a file, a folder (its text files, recursively and by path, or its
/// tokens; see docs/data.md), a pattern of files and folders, or "-". They are in the order of
/// `names`. Error (usage) where there is nothing, or what does not go together.
DataFiles find_data(const std::string& flag, const std::vector<std::string>& names);

}  // namespace sluice
