#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apps/config/train_config.h"
#include "apps/train/ranks.h"
#include "models/decoder/generate.h"
#include "models/decoder/parallelize.h"
#include "optim/space/parameter_space.h"
#include "parallel/data_parallel/tied_parameter.h"
#include "parallel/pipeline/executor.h"

namespace sluice {

/// How a pipeline divides the model between its ranks, and the schedule of a step.
struct PipelinePlan {
  Schedule schedule;  ///< lowered: with its sends and receives
  std::vector<int> rank_of_stage;
  std::vector<DecoderPart> parts;  ///< by stage
  bool layer_major = false;        ///< a stage serves all micro-batches before the next one
  Stash stash = Stash::graph;
  std::vector<int> inputs;                 ///< most micro-batches that wait for backward, by rank
  std::optional<std::size_t> max_stashed;  ///< bytes of stashed inputs kept on the device

  /// Returns the parts of the stages on `rank`, ascending.
  std::vector<DecoderPart> parts_of(int rank) const;
};

/// Returns the settings of a run that computes all micro-batches, of `micro_batch` sequences each,
/// block by block, so that weights can be offloaded.
TrainConfig as_layer_major(TrainConfig options, std::int64_t micro_batch);

/// Returns none if the options ask for no pipeline. Throws Error (usage) unless the schedule is
/// proved to run to its end.
std::shared_ptr<const PipelinePlan> plan_pipeline(const TrainConfig& options,
                                                  const DecoderConfig& config,
                                                  std::int64_t micro_batch, DeviceKind device);

/// The communicators of a pipeline's rank. Its ranks make them together.
struct PipelineLinks {
  PipelineLinks(const PipelinePlan& plan, int rank, const MakeGroup& make);

  StageLinks stages;
  std::shared_ptr<Communicator> ends;  ///< of the first and the last stage; null on other ranks
};

/// Runs a rank's part of a pipeline: owns its stages and its links to other ranks, but not its
/// parameters.
class Pipeline {
 public:
  struct Hooks {
    /// Called on the rank of the last stage, which computes the loss.
    std::function<void(int micro_batch, const Tensor& loss)> loss;
    std::function<void()> before_first_backward;
    /// Called before the backward pass that completes the gradients of `range`.
    std::function<void(const SpaceRange& range)> before_last_backward;
    /// Called before each backward pass of a part, and after the one that completes its gradients.
    std::function<void(const DecoderPart&, int micro_batch)> before_backward{};
    std::function<void(const DecoderPart&)> after_last_backward{};
  };

  /// `piece`: elements of the tied table's gradient exchanged at a time. `host`: memory for stashed
  /// inputs that are offloaded (--stash input:SIZE). All arguments must outlive the pipeline.
  Pipeline(Decoder& model, ParameterSpace& space, const PipelinePlan& plan, const Ranks& ranks,
           std::int64_t piece, const DevicePtr& host);

  void set_timeline(Timeline* timeline) { executor_.set_timeline(timeline); }
  /// Returns the bytes of stashed inputs copied to and from the host since the last call.
  StreamedBytes take_moved() { return executor_.take_moved(); }

  /// Runs forward and backward of all micro-batches of a step, then sums the tied table's two
  /// gradients.
  void step(const MicroBatches& data, const Hooks& hooks);
  /// Runs the forward pass of `count` micro-batches.
  void evaluate(const MicroBatches& data, int count,
                const std::function<void(int, const Tensor&)>& loss);
  /// Does what generate() in models/decoder/generate.h does. All ranks call it together and get the
  /// same tokens.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt,
                                     const Generation& options);

 private:
  std::int32_t next_token(std::span<const std::int32_t> fresh, KeyValueCache& cache,
                          const Sampling& sampling, std::size_t position);

  std::vector<Stage*> here() const;
  SpaceRange range_of(const DecoderPart& part) const;

  Decoder& model_;
  ParameterSpace& space_;
  const PipelinePlan& plan_;
  Communicator& all_;
  int rank_;       ///< rank within the pipeline
  int predictor_;  ///< job rank whose sampled tokens are used
  MicroBatches data_;
  std::vector<std::unique_ptr<DecoderStage>> stages_;  ///< by stage number; null if on another rank
  PipelineLinks links_;
  std::optional<TiedParameter> tied_;
  PipelineExecutor executor_;
};

}  // namespace sluice
