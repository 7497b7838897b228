#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "apps/train/run_lock.h"

namespace sluice {

/// The folder that a run writes. One process writes it at a time, and it is new, empty, or a run's:
/// nobody's files are replaced. A run's folder is known by run.lock, or by the checkpoints of a
/// program before there was one; the files that stdout and stderr go to count as nothing.
class RunFolder {
 public:
  /// `given` is --output; empty: runs/<time>, with -2, -3 and so on where that is taken. Holds the
  /// lock of a folder that is there. Throws Error (usage) where it cannot be written, is somebody
  /// else's or is in use.
  RunFolder(const std::string& given, std::string program);
  ~RunFolder();  ///< removes what it made, unless the run was begun
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Once nothing can refuse the run any more: makes the folder if need be and marks it.
  void begin();

 private:
  void reserve();

  std::filesystem::path path_, made_;  ///< made_: what to remove again; empty: nothing
  std::string program_;
  std::optional<RunLock> lock_;
  bool begun_ = false;
};

/// Throws Error (usage) where the model to begin with is one that the run would replace.
void require_other_model(const std::filesystem::path& model, const std::filesystem::path& output);

}  // namespace sluice
