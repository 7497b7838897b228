#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/checkpoint/checkpoint_manifest.h"
#include "optim/space/state_layout.h"

namespace sluice {

/// The planner's choices that decide a run's bits. A checkpoint records them, and a resumed run
/// keeps them unless its own flags say otherwise.
struct RecordedChoice {
  std::int64_t micro_batch = 1;  ///< sequences
  StateLayout layout = StateLayout::fp32;
  bool narrow_gradients = false;

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
