#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// A file "PREFIX_NNNNNN.bin", with six digits or more: one of a series.
struct ShardName {
  std::string prefix;
  std::int64_t number = 0;
};
std::optional<ShardName> shard_name(const std::filesystem::path& file);

/// "val.bin", "PREFIX_val.bin", "PREFIX_val_000000.bin": tokens for validation.
bool is_validation_name(const std::filesystem::path& file);

/// The files of tokens that lie in a folder, in order: train.bin and val.bin, or else those of a
/// series and those whose names end in train or val. Fails (usage) where train.bin and a series
/// train_NNNNNN.bin lie side by side, or a series does not begin with 0 or 1.
std::vector<std::filesystem::path> token_files_in(const std::filesystem::path& folder);

/// All files of the series that `file` is the first of; else `file` alone.
std::vector<std::filesystem::path> series_from(const std::filesystem::path& file);

/// Fails (usage), naming the file, where a number is missing between the first and the last of a
/// series.
void require_whole_series(const std::vector<std::filesystem::path>& files);

}  // namespace sluice
