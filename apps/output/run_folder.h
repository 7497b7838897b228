#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "apps/output/run_lock.h"

namespace sluice {

/// The folder that a run writes. One process writes it at a time. It must be new, empty or a run's,
/// so that no other files are replaced. A run's folder is recognised by run.lock, or by the
/// checkpoints of a version without run.lock. Files that stdout and stderr go to are ignored.
class RunFolder {
 public:
  /// `given` is --output; empty: runs/<time>, with -2, -3 and so on if that exists. Locks the
  /// folder if it is a run's. Throws Error (usage) if it cannot be written, does not belong to a
  /// run, or is in use.
  RunFolder(const std::string& given, std::string program);
  ~RunFolder();  ///< removes the folder that it made, unless the run has begun
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Makes the folder if needed and marks it. Call it once nothing can refuse the run any more.
  void begin();

 private:
  void reserve();

  std::filesystem::path path_, made_;  ///< made_: folder to remove again; empty: none
  std::string program_;
  std::optional<RunLock> lock_;
  bool begun_ = false;
};

/// Throws Error (usage) unless the folder of --output is new, empty or a run's.
void require_run_or_new(const std::filesystem::path& output);

/// Throws Error (usage) if the initial model is one that the run would replace.
void require_other_model(const std::filesystem::path& model, const std::filesystem::path& output);

}  // namespace sluice
