#pragma once

#include <memory>
#include <optional>

#include "apps/checkpoint/checkpoint.h"
#include "apps/train/memory_choice.h"
#include "apps/train/pipeline.h"
#include "apps/train/ranks.h"
#include "apps/train/setup.h"
#include "apps/train/trainer.h"
#include "engine/host_memory.h"
#include "models/lora/frozen_weights.h"
#include "parallel/comm/communicator_group.h"

namespace sluice {

Exchanges largest_exchanges(const TrainConfig& options, const RunSetup& setup,
                            const MemoryChoice& choice, const Mesh& mesh);

/// Returns the most bytes that a pipeline stage sends to the next one at a time: for a micro-batch,
/// a validation batch, or a prompt as long as the context.
std::size_t boundary_bytes(const RunSetup& setup, const MemoryChoice& choice);

/// Owns everything in a training that computes or holds memory, in the order in which memory is
/// allocated. The same code runs on the real device and, for the plan, on `meta`.
struct Training {
  /// `host` holds what the choice does not keep on the device.
  Training(const TrainConfig& options, const RunSetup& setup, const MemoryChoice& choice,
           const DevicePtr& device, const HostMemory& host, Ranks among = single_rank());

  /// Continues `prompt`. All ranks call it together.
  std::vector<std::int32_t> sample(std::span<const std::int32_t> prompt, const Generation& options);
  /// Throws Error unless all ranks that have a parameter have the same bits of it. No update may be
  /// under way. `when` is for the message: "at the start", "after step 100".
  void require_equal_copies(std::string_view when);
  CheckpointState checkpoint() {
    return {.space = space,
            .optimizer = *optimizer,
            .scaler = trainer.scaler(),
            .ranks = parallel,
            .whole = whole->front(),
            .mesh = ranks.mesh,
            .spikes = &trainer.spikes(),
            .micro_batch = trainer.options().micro_batch,
            .head_chunk = trainer.options().head_chunk,
            .schedule = trainer.schedule()};
  }

  Ranks ranks;
  std::shared_ptr<const PipelinePlan> plan;   ///< none: there is no pipeline
  std::unique_ptr<CommunicatorGroup> tensor;  ///< none: matrices are not divided
  /// The block inputs kept in host memory; none if no block's input is.
  std::optional<HostStack> block_inputs;
  Decoder model;
  ModelLayouts::Shards whole;         ///< the layout of the whole model's parameters
  std::vector<Parameter> parameters;  ///< trained parameters of this rank's stages
  std::shared_ptr<const BucketPlan> bucket_plan;
  std::unique_ptr<FrozenWeights> frozen;  ///< weights that are not trained; null: all are
  ParameterSpace space;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<SpeculativeUpdates> speculation;
  std::optional<ModelNorm> norm;
  DataParallel parallel;
  std::unique_ptr<Pipeline> pipeline;  ///< none: the trainer runs the whole model
  Trainer trainer;
  /// Rank 0's memory for the copy that --save background writes to disk.
  CheckpointCopy copy;
};

/// Returns the tokens of the prompt from which a sample starts.
std::vector<std::int32_t> sample_prompt(const TrainConfig& options, const RunSetup& setup);

/// Returns the prompt and its continuation by the model, made of tokens that the tokenizer knows.
/// All ranks call it together.
std::string sample_text(const TrainConfig& options, const RunSetup& setup, Training& training,
                        std::int64_t step);

}  // namespace sluice