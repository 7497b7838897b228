#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/faults/walk_model.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// What a random walk finds on the disk, and what it has to find there.

namespace sluice::test::walk {

using Digests = std::map<std::string, std::string>;

/// Of a file, or of the files of a folder with their names; "" where there is nothing.
std::string digest(const std::filesystem::path& path);
/// Of every file below a folder but run.lock; folders too, with "folder" for a digest.
Digests snapshot(const std::filesystem::path& folder);
/// What differs first; "" where nothing does.
std::string first_difference(const Digests& before, const Digests& after);

/// Of a state.json, as docs/file-formats.md describes it.
struct Manifest {
  int step = 0, skipped = 0, keep = 0, micro_batch = 0;
  std::vector<std::int64_t> saves;  ///< that it descends from, its own last
};
std::optional<Manifest> read_manifest_of(const std::filesystem::path& checkpoint);
/// Whether sizes and checksums are those of its state.json.
bool is_whole(const std::filesystem::path& checkpoint);

/// resume.json; null where there is none.
nlohmann::json read_resume(const std::filesystem::path& checkpoints);

/// The log's lines from that byte on.
std::vector<nlohmann::json> log_after(const std::filesystem::path& log, std::size_t offset);

/// Checkpoints of runs that nothing happens to, by the way that they have gone.
class References {
 public:
  /// `flags`: of the model and its data.
  explicit References(Arguments flags) : flags_(std::move(flags)) {}

  /// A checkpoint of a run that went this way.
  std::filesystem::path of(const Way& way);
  /// Room on the disk is given back when there are many; not while a path is in use.
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
