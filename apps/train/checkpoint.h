#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "apps/train/checkpoint_manifest.h"
#include "apps/train/spike_guard.h"
#include "engine/io/output.h"
#include "engine/io/stored_tensor.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "optim/parameter_space.h"
#include "parallel/data_parallel.h"
#include "parallel/model_state.h"

namespace sluice {

/// A checkpoint is a folder step-NNNNNNNN with weights.safetensors (the master weights),
/// optimizer.safetensors (the optimizer's state by parameter, as its layout stores it) and
/// state.json: the step, what the run was, and checksums of the other files. See
/// checkpoint_folder.h for how it comes to be there as a whole, and checkpoint_saver.h for saving.

/// What a checkpoint holds, of one rank or of several that call the same functions together.
struct CheckpointState {
  ParameterSpace& space;
  Optimizer& optimizer;
  LossScaler& scaler;
  DataParallel& ranks;
  const SpaceLayout& whole;    ///< of the model, of which the space may be a part
  const Collector& collector;  ///< how its parts come together
  SpikeGuard* spikes = nullptr;
  std::int64_t micro_batch = 1;  ///< sequences; for the record

  /// All ranks make it together.
  ModelState model() const { return {space, optimizer, ranks.optimizer, whole, collector}; }
};

/// The files of a checkpoint beside its manifest, and how large they are.
struct CheckpointBytes {
  std::uint64_t weights = 0, optimizer = 0;
};
CheckpointBytes bytes_of(const CheckpointState& state);

/// Host memory for a copy of both.
struct CheckpointCopy {
  CheckpointBytes bytes{};
  Tensor memory{};  ///< none: there is no room for one

  std::span<std::byte> weights() const { return all().first(bytes.weights); }
  std::span<std::byte> optimizer() const { return all().subspan(bytes.weights); }

 private:
  std::span<std::byte> all() const {
    return {reinterpret_cast<std::byte*>(memory.view().address), memory.bytes()};
  }
};

/// Writes them, the weights first. All ranks call it; what the first one's outputs receive is the
/// same as one rank alone would write.
void write_files(const CheckpointState& state, Output& weights, Output& optimizer);
/// All but the files. `run` is what a resumed run must agree on.
CheckpointManifest describe(std::int64_t step, const nlohmann::json& run,
                            const CheckpointState& state);

/// The weights alone, under Hugging Face's names; see save_weights in models/gpt2/weights.h. Ranks
/// that do not write give no file.
void save_weights(const std::filesystem::path& file, const CheckpointState& state, StoredType type);

/// Reads what its files hold, which verify_files has found whole. Throws Error naming the field of
/// `run` that differs or the state that another layout has stored with fewer bits. Returns the step
/// and fills weights, state, update count and loss scale. Every rank reads what it needs.
std::int64_t load_checkpoint(const std::filesystem::path& checkpoint,
                             const CheckpointManifest& manifest, const nlohmann::json& run,
                             const CheckpointState& state);

}  // namespace sluice
