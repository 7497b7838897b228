#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "apps/checkpoint/checkpoint_manifest.h"
#include "apps/checkpoint/spike_guard.h"
#include "engine/io/output.h"
#include "engine/io/stored_tensor.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "optim/space/parameter_space.h"
#include "parallel/data_parallel/data_parallel.h"
#include "parallel/data_parallel/model_state.h"

namespace sluice {

/// A checkpoint is a folder step-NNNNNNNN with weights.safetensors (the master weights),
/// optimizer.safetensors (the optimizer state by parameter, as its layout stores it) and state.json
/// (the step, the run's settings and checksums of the other files). See checkpoint_folder.h for how
/// it is published atomically, and checkpoint_saver.h for saving.

/// The state that a checkpoint saves. With several ranks all call the same functions together.
struct CheckpointState {
  ParameterSpace& space;
  Optimizer& optimizer;
  LossScaler& scaler;
  DataParallel& ranks;
  const SpaceLayout& whole;         ///< layout of the whole model; `space` may be a part of it
  const GatherLinks& gather_links;  ///< collect the parts on rank 0
  SpikeGuard* spikes = nullptr;
  std::int64_t micro_batch = 1;    ///< sequences; recorded only
  std::int64_t head_chunk = 1024;  ///< tokens; recorded only

  /// All ranks call it together.
  ModelState model() const { return {space, optimizer, ranks.optimizer, whole, gather_links}; }
};

/// Sizes in bytes of a checkpoint's files beside its manifest.
struct CheckpointBytes {
  std::uint64_t weights = 0, optimizer = 0;
};
CheckpointBytes bytes_of(const CheckpointState& state);

/// Host memory for a copy of both files.
struct CheckpointCopy {
  CheckpointBytes bytes{};
  Tensor memory{};  ///< none: no copy is kept

  std::span<std::byte> weights() const { return all().first(bytes.weights); }
  std::span<std::byte> optimizer() const { return all().subspan(bytes.weights); }

 private:
  std::span<std::byte> all() const {
    return {reinterpret_cast<std::byte*>(memory.view().address), memory.bytes()};
  }
};

/// Writes both files, the weights first. All ranks call it. The outputs of rank 0 receive the same
/// bytes as a single rank would write.
void write_files(const CheckpointState& state, Output& weights, Output& optimizer);
/// Describes the state for the manifest, except its files. A resumed run must agree on `run`.
CheckpointManifest describe(std::int64_t step, const nlohmann::json& run,
                            const CheckpointState& state);

/// Saves the weights alone under Hugging Face's names; see save_weights in models/gpt2/weights.h.
/// Ranks that do not write pass an empty path.
void save_weights(const std::filesystem::path& file, const CheckpointState& state, StoredType type);

/// Fills weights, optimizer state, update count and loss scale from a checkpoint that verify_files
/// has accepted, and returns its step. Every rank reads what it needs. Throws Error naming the
/// field of `run` that differs, or the state that this run's layout cannot keep exactly.
std::int64_t load_checkpoint(const std::filesystem::path& checkpoint,
                             const CheckpointManifest& manifest, const nlohmann::json& run,
                             const CheckpointState& state);

}  // namespace sluice
