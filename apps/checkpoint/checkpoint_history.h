#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/checkpoint/checkpoint_manifest.h"

namespace sluice {

/// The checkpoint that --resume PATH or --skip-batches has chosen. It is kept in resume.json among
/// the checkpoints until the run saves one of its own. A run killed before that resumes from this
/// choice again and not from a checkpoint that was abandoned.
struct ResumePoint {
  std::filesystem::path checkpoint{};
  bool named = false;  ///< chosen by --resume PATH
  std::int64_t skip_batches = 0;
  std::int64_t saves = 0;  ///< last save number of the folder when it was chosen
  std::int64_t keep = 0;   ///< --keep of the run that chose it
};

/// The checkpoints of a run's folder in the order of saving, which their manifests record
/// (lineage.h). Those that were set aside are not included.
class CheckpointHistory {
 public:
  struct Entry {
    std::filesystem::path path{};
    std::int64_t step = 0;                         ///< the step in its name
    std::optional<CheckpointManifest> manifest{};  ///< none: it is damaged
  };

  static constexpr const char* point_file = "resume.json";

  /// Reads every state.json of `folder`, which may be missing. `with_unnamed`: also includes
  /// complete checkpoints not yet renamed (place_of_unnamed), if newer than all others; only for
  /// the holder of the run's lock.
  explicit CheckpointHistory(const std::filesystem::path& folder, bool with_unnamed = false);

  /// Entries, oldest first. A damaged one follows the checkpoint of the next lower step.
  const std::vector<Entry>& entries() const { return entries_; }
  /// One sentence per folder whose name and manifest differ in the step, as in a renamed copy.
  const std::vector<std::string>& misnamed() const { return misnamed_; }
  /// The highest save number, including checkpoints that were set aside.
  std::int64_t last_save() const { return last_save_; }
  /// --keep of the run that saved or wrote resume.json there last; 0: not recorded.
  std::int64_t keep() const { return keep_; }
  /// Returns the contents of resume.json. Throws Error (runtime) if it is damaged.
  std::optional<ResumePoint> resume_point() const;
  /// Returns the checkpoints to resume from by default, newest first; each replaces a damaged
  /// one before it. Those saved since resume.json was written come first, then the one that it
  /// names.
  std::vector<ResumePoint> candidates() const;
  /// Returns the first candidate's path; empty if there is none.
  std::filesystem::path newest() const;
  /// Returns the checkpoints that `checkpoint` descends from.
  std::vector<Entry> ancestors(const CheckpointManifest& checkpoint) const;
  /// Returns the ancestors that --keep counts. Those named by --resume PATH are left out, since the
  /// same command must find them again.
  std::vector<Entry> removable(const CheckpointManifest& checkpoint) const;

 private:
  std::filesystem::path folder_;
  std::vector<Entry> entries_;
  std::vector<std::string> misnamed_;
  std::int64_t last_save_ = 0, keep_ = 0;
  std::set<std::int64_t> named_;  ///< numbers of all saves that --resume PATH has ever named
};

/// Returns the paths of the folder's checkpoints, in the order of saving.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

/// Writes resume.json; the second function removes it.
void record(const ResumePoint& point, const std::filesystem::path& folder);
void forget_resume_point(const std::filesystem::path& folder);

/// Removes the removable ancestors of `saved`, except the newest keep - 1.
void remove_old_checkpoints(const std::filesystem::path& saved, std::int64_t keep);

}  // namespace sluice
