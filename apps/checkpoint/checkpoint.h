#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "apps/checkpoint/checkpoint_manifest.h"
#include "apps/checkpoint/collective_write.h"
#include "apps/checkpoint/spike_guard.h"
#include "engine/io/output.h"
#include "engine/io/stored_tensor.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
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
  const SpaceLayout& whole;  ///< layout of the whole model; `space` may be a part of it
  const Mesh& mesh;          ///< the layout of the ranks
  SpikeGuard* spikes = nullptr;
  std::int64_t micro_batch = 1;    ///< sequences; recorded only
  std::int64_t head_chunk = 1024;  ///< tokens; recorded only
  RateSchedule schedule{};         ///< of which the rate that comes next is recorded

  /// All ranks call it together.
  ModelState model() const {
    return {space, optimizer, ranks.optimizer, whole, mesh, ranks.control};
  }
};

/// Host memory for a copy of both files.
struct CheckpointCopy {
  bool wanted = false;                       ///< on all ranks
  std::uint64_t weights = 0, optimizer = 0;  ///< bytes of the files
  Tensor memory{};                           ///< on rank 0

  std::span<std::byte> weights_bytes() const { return all().first(weights); }
  std::span<std::byte> optimizer_bytes() const { return all().subspan(weights); }

 private:
  std::span<std::byte> all() const {
    return {reinterpret_cast<std::byte*>(memory.view().address), memory.bytes()};
  }
};

/// The contents of a checkpoint's files beside its manifest.
struct CheckpointFiles {
  ModelState model;
  StateFile weights, optimizer;
};

/// Lays out both files. All ranks call it together.
CheckpointFiles lay_out(const CheckpointState& state);
/// Writes both files together, the weights first; see write_together().
void write_files(CheckpointFiles& files, Communicator& ranks, const std::vector<int>& writers,
                 Output& weights, Output& optimizer);
/// Describes the state for the manifest, except its files. A resumed run must agree on `run`.
CheckpointManifest describe(std::int64_t step, const nlohmann::json& run,
                            const CheckpointState& state);

/// Saves the weights alone under Hugging Face's names; see save_weights in
/// models/decoder/weights.h. Rank 0 gives the path of a new file; all ranks that see its folder
/// write to it.
void save_weights(const std::filesystem::path& file, const CheckpointState& state, StoredType type);

/// Fills weights, optimizer state, update count and loss scale from a checkpoint that verify_files
/// has accepted, and returns its step. Every rank reads what it needs. Throws Error naming the
/// field of `run` that differs, or the state that this run's layout cannot keep exactly.
std::int64_t load_checkpoint(const std::filesystem::path& checkpoint,
                             const CheckpointManifest& manifest, const nlohmann::json& run,
                             const CheckpointState& state);

}  // namespace sluice
