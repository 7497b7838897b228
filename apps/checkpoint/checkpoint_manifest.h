#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/section_sums.h"
#include "optim/space/state_layout.h"

namespace sluice {

/// The saves that a checkpoint descends from. The saves in a run's folder are numbered from 1 in
/// the order in which they were made, across all processes that trained there. A run that goes back
/// to step 10 and saves step 12 makes a later save than the save of step 20 that it abandons. The
/// numbers of the ancestors and of the checkpoint itself (the last) are stored as ranges: a run
/// that went back from save 5 to save 2 writes saves 6 and 7 with the lineage [1, 2], [6, 7]. The
/// lineage also records which of these saves --resume PATH has named.
class Lineage {
 public:
  struct Stretch {
    std::int64_t first = 0, last = 0;
  };

  /// Returns the number of the checkpoint's own save; 0 if none is recorded.
  std::int64_t save() const { return stretches_.empty() ? 0 : stretches_.back().last; }
  /// Returns true if `save` is in the lineage.
  bool holds(std::int64_t save) const;
  /// Returns true if --resume PATH has named `save`.
  bool named(std::int64_t save) const;
  const std::vector<std::int64_t>& named() const { return named_; }
  /// Records that --resume PATH has named `save`, if it is in the lineage.
  void name(std::int64_t save);
  /// Appends the next save.
  void add(std::int64_t save);

  /// Returns JSON such as {"saves": [[1, 2], [6, 7]], "named": [2]}.
  nlohmann::json to_json() const;
  /// Throws nlohmann::json::exception, or std::out_of_range if the numbers do not increase or if a
  /// named save is not in the lineage.
  static Lineage from_json(const nlohmann::json& json);

 private:
  std::vector<Stretch> stretches_;
  std::vector<std::int64_t> named_;
};

/// The files of a checkpoint besides state.json.
inline constexpr const char *weights_file = "weights.safetensors",
                            *optimizer_file = "optimizer.safetensors";

/// The contents of a checkpoint's state.json: the step, other fields of the state, checksums of the
/// checkpoint's files, and a checksum of state.json itself.
struct CheckpointManifest {
  std::int64_t step = 0;
  std::shared_ptr<const nlohmann::json> fields{};  ///< "updates", "run", "loss_scale", ...
  std::map<std::string, SectionSums> files{};
  Lineage lineage{};      ///< within the folder that it was saved in; empty: not recorded
  std::int64_t keep = 0;  ///< the run's --keep; 0: not recorded
};

std::string to_text(const CheckpointManifest& manifest);

/// Throws Error (runtime) that names the file and the fault if the manifest is damaged.
CheckpointManifest read_manifest(const std::filesystem::path& checkpoint);

/// Reads all files of the checkpoint, or one of several equal shares of them: ranks that see the
/// same files read a share each. Throws Error (runtime) that names the file and, if its size is
/// right, the bytes and the tensors that differ from those written.
void verify_files(const std::filesystem::path& checkpoint, const CheckpointManifest& manifest,
                  std::size_t share = 0, std::size_t shares = 1);

/// Returns a whole number from `least` to `most`; reports `file` as damaged if it is anything else.
std::int64_t whole_number(const nlohmann::json& value, std::int64_t least, std::int64_t most,
                          const std::filesystem::path& file);

/// Throws Error (runtime) that advises the user to resume from an older checkpoint.
[[noreturn]] void damaged(const std::filesystem::path& file, const std::string& why);

/// The planner's choices that decide a run's bits. A checkpoint records them, and a resumed run
/// keeps them unless its own flags say otherwise.
struct RecordedChoice {
  std::int64_t micro_batch = 1;  ///< sequences
  StateLayout layout = StateLayout::fp32;
  bool narrow_gradients = false;
  std::int64_t head_chunk = 1024;  ///< tokens; 1024 if the checkpoint does not say

  const char* gradients() const { return narrow_gradients ? "bf16" : "fp32"; }
};

/// Returns the choice as flags of train_gpt2.
std::string to_flags(const RecordedChoice& choice);
nlohmann::json to_json(const RecordedChoice& choice);

/// Returns none if the program that wrote the checkpoint did not record it. Throws Error (runtime)
/// if the record is damaged.
std::optional<RecordedChoice> recorded_choice(const std::filesystem::path& checkpoint,
                                              const CheckpointManifest& manifest);

}  // namespace sluice
