#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apps/train/options.h"
#include "apps/train/ranks.h"
#include "models/gpt2/generate.h"
#include "models/gpt2/parallelize.h"
#include "optim/parameter_space.h"
#include "parallel/pipeline/executor.h"
#include "parallel/tied_parameter.h"

namespace sluice {

/// How a run's model is divided between the ranks of a pipeline, and what they do in a step.
struct PipelinePlan {
  Schedule schedule;  ///< lowered
  std::vector<int> rank_of_stage;
  std::vector<GPT2Part> parts;  ///< by stage
  Stash stash = Stash::graph;
  std::vector<int> live;                    ///< most micro-batches of all stages of a rank, by rank
  std::optional<std::size_t> most_stashed;  ///< bytes of inputs that stay on the device

  /// Those of a rank, ascending.
  std::vector<GPT2Part> parts_of(int rank) const;
};

/// None where the options ask for no pipeline. Throws Error (usage) unless the schedule is proved
/// to run to its end.
std::shared_ptr<const PipelinePlan> plan_pipeline(const TrainOptions& options,
                                                  const GPT2Config& config,
                                                  std::int64_t micro_batch);

/// What a rank of a pipeline has beside its parameters: stages, and those that it exchanges with.
class Pipeline {
 public:
  struct Hooks {
    /// At the rank that predicts.
    std::function<void(int micro_batch, const Tensor& loss)> loss;
    std::function<void()> before_first_backward;
    /// The gradients of this range are complete after the backward that follows.
    std::function<void(const SpaceRange& range)> before_last_backward;
  };

  /// `piece`: elements of the tied table's gradient that are exchanged at a time. `host` is where
  /// stashed inputs rest, if not all may stay on the device. Everything given outlives it.
  Pipeline(GPT2& model, ParameterSpace& space, const PipelinePlan& plan, const Ranks& ranks,
           std::int64_t piece, const DevicePtr& host);

  void set_timeline(Timeline* timeline) { executor_.set_timeline(timeline); }

  /// Forward and backward of a step's micro-batches; the gradients of both ends are added up.
  void step(const MicroBatches& data, const Hooks& hooks);
  /// Forward alone, of any number of micro-batches.
  void evaluate(const MicroBatches& data, int count,
                const std::function<void(int, const Tensor&)>& loss);
  /// As generate() in models/gpt2/generate.h; all ranks call it together and return the same.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt,
                                     const Generation& options);

 private:
  std::int32_t next_token(std::span<const std::int32_t> fresh, KeyValueCache& cache,
                          const Sampling& sampling, std::size_t position);

  std::vector<Stage*> here() const;
  SpaceRange range_of(const GPT2Part& part) const;

  GPT2& model_;
  ParameterSpace& space_;
  const PipelinePlan& plan_;
  Communicator& all_;
  int rank_;       ///< in the pipeline
  int predictor_;  ///< whose tokens count, among all ranks
  MicroBatches data_;
  std::vector<std::unique_ptr<GPT2Stage>> stages_;  ///< by number, null where others have them
  StageLinks links_;
  std::shared_ptr<Communicator> ends_;  ///< the first and the last rank
  std::optional<TiedParameter> tied_;
  PipelineExecutor executor_;
};

}  // namespace sluice
