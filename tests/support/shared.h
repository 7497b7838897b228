#pragma once

#include <filesystem>
#include <optional>

namespace sluice::test {

/// The folder of fixtures and data that lies beside the repository; none where it is absent. Tests
/// that need it say so with WARN("skipped: no shared data") and return.
inline std::optional<std::filesystem::path> shared_dir() {
  const std::filesystem::path folder = SLUICE_SHARED_DIR;
  return std::filesystem::is_directory(folder) ? std::optional(folder) : std::nullopt;
}

}  // namespace sluice::test
