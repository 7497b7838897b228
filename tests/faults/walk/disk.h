#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/faults/walk/model.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// The observed state of the disk in a random walk, and the reference runs that predict it.

namespace sluice::test::walk {

using Digests = std::map<std::string, std::string>;

/// Returns the digest of a file, or of a folder's file names and files; "" if nothing is there.
std::string digest(const std::filesystem::path& path);
/// Returns digests of all files below a folder except run.lock; a folder's digest is "folder".
Digests snapshot(const std::filesystem::path& folder);
/// Returns the first difference; "" if there is none.
std::string first_difference(const Digests& before, const Digests& after);

/// The contents of a state.json, as docs/reference/file-formats.md describes it.
struct Manifest {
  int step = 0, skipped = 0, keep = 0, micro_batch = 0;
  std::vector<std::int64_t> saves;  ///< ancestors, then its own save last
};
std::optional<Manifest> read_manifest_of(const std::filesystem::path& checkpoint);
/// Returns true if sizes and checksums match the checkpoint's state.json.
bool is_whole(const std::filesystem::path& checkpoint);

/// Returns the contents of resume.json; null if it is absent.
nlohmann::json read_resume(const std::filesystem::path& checkpoints);

/// Returns the log's lines from byte `offset` on.
std::vector<nlohmann::json> log_after(const std::filesystem::path& log, std::size_t offset);

/// Checkpoints of undisturbed runs, indexed by their way (the history of steps).
class References {
 public:
  /// `flags` describe the model and its data.
  explicit References(Arguments flags) : flags_(std::move(flags)) {}

  /// Returns a checkpoint of a run that went this way.
  std::filesystem::path of(const Way& way);
  /// Frees disk space when there are many checkpoints; must not run while a path is in use.
  void tidy();

 private:
  struct Made {
    std::filesystem::path checkpoints;
    int until = 0;
  };

  Arguments flags_;
  std::optional<TempDir> dir_;
  std::map<std::string, Made> made_;
  int number_ = 0;
};

}  // namespace sluice::test::walk
