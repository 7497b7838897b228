#pragma once

#include <filesystem>
#include <optional>

namespace sluice::test {

/// Returns the folder of fixtures and data beside the repository; nothing if it is absent. Tests
/// that need it report WARN("skipped: no shared data") and return.
inline std::optional<std::filesystem::path> shared_dir() {
  const std::filesystem::path folder = SLUICE_SHARED_DIR;
  return std::filesystem::is_directory(folder) ? std::optional(folder) : std::nullopt;
}

}  // namespace sluice::test
