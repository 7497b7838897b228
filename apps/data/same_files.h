#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace sluice {

/// The files that a flag means to this rank.
struct FilesOfFlag {
  std::string flag;
  std::vector<std::filesystem::path> files{};
  std::string fault{};  ///< why there are none; ""
};

/// Returns the files that `find` returns, or the fault that it throws.
FilesOfFlag files_of(const std::string& flag,
                     const std::function<std::vector<std::filesystem::path>()>& find);
/// Returns the files of text or tokens, with masks, that the values of a flag name. A pipe, which
/// can be read once, is left out.
FilesOfFlag data_files_of(const std::string& flag, const std::vector<std::string>& names);
/// Returns the files that make a folder of a model: shape, weights and tokenizer. None: it is no
/// folder.
FilesOfFlag model_files_of(const std::string& flag, const std::filesystem::path& folder);

/// Throws Error (usage) on all ranks if one has other files than rank 0: names the flag, the file,
/// the rank and its host. Compares the sizes, and of each file a MiB at both ends, or less where
/// there are more than 8 files. The names may differ. All ranks call it with the same flags, before
/// they read the files.
void require_same_files(Communicator& ranks, const std::vector<FilesOfFlag>& flags);

}  // namespace sluice
