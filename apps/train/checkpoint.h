#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/train/spike_guard.h"
#include "engine/io/stored_tensor.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "optim/parameter_space.h"
#include "parallel/data_parallel.h"
#include "parallel/model_state.h"

namespace sluice {

/// A checkpoint is a folder step-NNNNNNNN with weights.safetensors (the master weights),
/// optimizer.safetensors (the optimizer's state by parameter, as its layout stores it) and
/// state.json, written last: the step, what the run was, and size and CRC-32 of the other files. It
/// is written beside its place as step-NNNNNNNN.tmp.<pid>, synced, and renamed: under its own name
/// it is whole or absent. Nothing holds a second copy of the model in memory meanwhile.

/// What a checkpoint holds, of one rank or of several that call the same functions together.
struct CheckpointState {
  ParameterSpace& space;
  Optimizer& optimizer;
  LossScaler& scaler;
  DataParallel& ranks;
  const SpaceLayout& whole;    ///< of the model, of which the space may be a part
  const Collector& collector;  ///< how its parts come together
  SpikeGuard* spikes = nullptr;

  /// All ranks make it together.
  ModelState model() const { return {space, optimizer, ranks.optimizer, whole, collector}; }
};

/// Saves and then removes all but the newest `keep` checkpoints of `folder`. `run` is what a
/// resumed run must agree on. Of several ranks the first writes, the same files as one alone would.
/// Returns the checkpoint's path once it is whole.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, std::int64_t step,
                                      const nlohmann::json& run, const CheckpointState& state,
                                      std::int64_t keep);

/// The weights alone, under Hugging Face's names; see save_weights in models/gpt2/weights.h.
void save_weights(const std::filesystem::path& file, const CheckpointState& state, StoredType type);

/// The checkpoints of a folder, oldest first. Left-over temporaries are not among them.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);
/// Removes temporaries that a crash has left.
void remove_temporaries(const std::filesystem::path& folder);

/// Checks sizes and checksums of all files; throws Error naming the file that is damaged, the field
/// of `run` that differs, or the state that another layout has stored with fewer bits. Returns the
/// step and fills weights, state, update count and loss scale. Every rank reads what it needs.
std::int64_t load_checkpoint(const std::filesystem::path& checkpoint, const nlohmann::json& run,
                             const CheckpointState& state);

}  // namespace sluice
