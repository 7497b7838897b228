#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// The name of a file in a series: "PREFIX_NNNNNN.bin", with six digits or more.
struct ShardName {
  std::string prefix;
  std::int64_t number = 0;
};
std::optional<ShardName> shard_name(const std::filesystem::path& file);

/// Returns true for a validation file's name: "val.bin", "PREFIX_val.bin", "PREFIX_val_000000.bin".
bool is_validation_name(const std::filesystem::path& file);

/// Returns the token files in a folder, in order: train.bin and val.bin, or else those of a series
/// and those whose names end in train or val. Throws Error (usage) if train.bin and a series
/// train_NNNNNN.bin are both there, or if a series does not begin with 0 or 1.
std::vector<std::filesystem::path> token_files_in(const std::filesystem::path& folder);

/// Returns all files of the series if `file` is its first one; else `file` alone.
std::vector<std::filesystem::path> series_from(const std::filesystem::path& file);

/// Throws Error (usage), naming the file, if a number is missing between the first and the last of
/// a series.
void require_whole_series(const std::vector<std::filesystem::path>& files);

}  // namespace sluice
