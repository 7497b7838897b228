#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sluice::test {

/// Returns tests/data, which tests/reference/make_data makes.
inline std::filesystem::path data_dir() {
  return SLUICE_TEST_DATA_DIR;
}

/// Returns the folder beside the repository with larger data of the same layout, if it is there.
inline std::optional<std::filesystem::path> shared_dir() {
  const std::filesystem::path folder = SLUICE_SHARED_DIR;
  return std::filesystem::is_directory(folder) ? std::optional(folder) : std::nullopt;
}

/// Returns the folders of models with expected values: that of tests/data, and the one beside the
/// repository if it is there.
inline std::vector<std::string> fixture_folders() {
  std::vector<std::string> folders{(data_dir() / "fixtures").string()};
  if (const auto shared = shared_dir()) folders.push_back((*shared / "fixtures").string());
  return folders;
}

/// Returns the folder of GPT-2's own vocabulary, which is not the project's to give away:
/// $SLUICE_GPT2_TOKENIZER, or the one beside the repository.
inline std::optional<std::filesystem::path> gpt2_tokenizer() {
  if (const char* folder = std::getenv("SLUICE_GPT2_TOKENIZER")) return folder;
  if (const auto shared = shared_dir()) return *shared / "data";
  return std::nullopt;
}

}  // namespace sluice::test
