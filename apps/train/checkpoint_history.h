#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/train/checkpoint_manifest.h"

namespace sluice {

/// What --resume PATH or --skip-batches has chosen to go on from: kept in resume.json among the
/// checkpoints until the run has saved one of its own, so that a run that is killed before goes on
/// from there, and not from a checkpoint that was given up.
struct ResumePoint {
  std::filesystem::path checkpoint{};
  bool named = false;  ///< by --resume
  std::int64_t skip_batches = 0;
  std::int64_t saves = 0;  ///< of the folder, when it was chosen
  std::int64_t keep = 0;   ///< --keep of the run that chose it
};

/// The checkpoints of a run's folder in the order in which they were saved, which their manifests
/// tell (lineage.h). Those that were set aside are not among them.
class CheckpointHistory {
 public:
  struct Entry {
    std::filesystem::path path{};
    std::int64_t step = 0;                         ///< in its name
    std::optional<CheckpointManifest> manifest{};  ///< none: it is damaged
  };

  static constexpr const char* point_file = "resume.json";

  /// Reads every state.json of `folder`, which may be missing. Who holds the lock of the run may
  /// ask for a whole checkpoint without its name (place_of_unnamed) that is newer than all others
  /// too.
  explicit CheckpointHistory(const std::filesystem::path& folder, bool with_unnamed = false);

  /// Oldest first. A damaged one stands behind those of lower steps.
  const std::vector<Entry>& entries() const { return entries_; }
  /// A sentence for each folder whose name tells another step than its manifest, as a copy's may.
  const std::vector<std::string>& misnamed() const { return misnamed_; }
  /// The highest number of a save, those that were set aside included.
  std::int64_t last_save() const { return last_save_; }
  /// --keep of the run that saved there last, or has written resume.json since; 0: not recorded.
  std::int64_t keep() const { return keep_; }
  /// What resume.json says. Throws Error (runtime) where it is damaged.
  std::optional<ResumePoint> resume_point() const;
  /// What the run goes on from unless it is told otherwise, the newest first: each stands in for a
  /// damaged one before it. After what was saved since resume.json was written comes what that
  /// says.
  std::vector<ResumePoint> candidates() const;
  /// The first of them; empty: nothing.
  std::filesystem::path newest() const;
  /// Those that `checkpoint` descends from.
  std::vector<Entry> ancestors(const CheckpointManifest& checkpoint) const;
  /// Of them, those that --keep counts: not those that --resume PATH has named, for the same
  /// command must find them again.
  std::vector<Entry> removable(const CheckpointManifest& checkpoint) const;

 private:
  std::filesystem::path folder_;
  std::vector<Entry> entries_;
  std::vector<std::string> misnamed_;
  std::int64_t last_save_ = 0, keep_ = 0;
  std::set<std::int64_t> named_;  ///< saves that --resume PATH has named, whatever came of it
};

/// The paths of its entries.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

/// Writes resume.json, or removes it.
void record(const ResumePoint& point, const std::filesystem::path& folder);
void forget_resume_point(const std::filesystem::path& folder);

/// Removes the removable ancestors of `saved` but for the newest keep - 1.
void remove_old_checkpoints(const std::filesystem::path& saved, std::int64_t keep);

}  // namespace sluice
