#pragma once

#include <memory>
#include <optional>

#include "apps/train/checkpoint.h"
#include "apps/train/memory_choice.h"
#include "apps/train/pipeline.h"
#include "apps/train/ranks.h"
#include "apps/train/setup.h"
#include "apps/train/trainer.h"
#include "engine/host_memory.h"
#include "parallel/communicator_group.h"

namespace sluice {

Exchanges largest_exchanges(const TrainOptions& options, const RunSetup& setup,
                            const MemoryChoice& choice, const Mesh& mesh);

/// The most that one stage of a pipeline hands to the next: a micro-batch, a batch of validation,
/// or a prompt as long as the context.
std::size_t boundary_bytes(const RunSetup& setup, const MemoryChoice& choice);

/// What computes and holds memory in a training run, in the order in which memory is taken: the
/// same code on the device of a run and, for its plan, on `meta`.
struct Training {
  /// `host` is where rests what the choice does not keep on the device.
  Training(const TrainOptions& options, const RunSetup& setup, const MemoryChoice& choice,
           const DevicePtr& device, const HostMemory& host, Ranks among = single_rank());

  /// Continues `prompt`; all ranks call it together.
  std::vector<std::int32_t> sample(std::span<const std::int32_t> prompt, const Generation& options);
  /// Throws Error unless all ranks that have a parameter have the same bits of it; no update may be
  /// under way. `when`: "at the start", "after step 100".
  void require_equal_copies(std::string_view when);
  CheckpointState checkpoint() {
    return {space, *optimizer,      trainer.scaler(),  parallel,
            whole, ranks.collector, &trainer.spikes(), trainer.micro_batch()};
  }

  Ranks ranks;
  std::shared_ptr<const PipelinePlan> plan;   ///< of the pipeline, if there is one
  std::unique_ptr<CommunicatorGroup> tensor;  ///< none: nobody divides the matrices
  /// Of blocks whose inputs rest on the host.
  std::optional<HostStack> block_inputs;
  GPT2 model;
  SpaceLayout whole;                  ///< the parameters of all ranks together
  std::vector<Parameter> parameters;  ///< of this rank's stages
  Partition partition;
  ParameterSpace space;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<SpeculativeUpdates> speculation;
  std::optional<ModelNorm> norm;
  DataParallel parallel;
  std::optional<Pipeline> pipeline;
  Trainer trainer;
  /// Of the first rank, with --async-save.
  CheckpointCopy copy;

 private:
  Pipeline* make_pipeline(const TrainOptions& options, const RunSetup& setup,
                          const MemoryChoice& choice, const HostMemory& host);
};

}  // namespace sluice