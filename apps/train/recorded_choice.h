#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/train/checkpoint_manifest.h"
#include "optim/state_layout.h"

namespace sluice {

/// What decides a run's bits among the things that a planner chooses. A checkpoint records it, and
/// a run that goes on from one keeps it where its own flags leave it open.
struct RecordedChoice {
  std::int64_t micro_batch = 1;  ///< sequences
  StateLayout layout = StateLayout::fp32;
  bool narrow_gradients = false;

  const char* gradients() const { return narrow_gradients ? "bf16" : "fp32"; }
};

/// As flags of train_gpt2.
std::string to_flags(const RecordedChoice& choice);
nlohmann::json to_json(const RecordedChoice& choice);

/// None where the program that wrote the checkpoint did not record it. Throws Error (runtime) where
/// the record is damaged.
std::optional<RecordedChoice> recorded_choice(const std::filesystem::path& checkpoint,
                                              const CheckpointManifest& manifest);

}  // namespace sluice
