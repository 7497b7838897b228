#pragma once

#include <cstdint>
#include <vector>

#include "apps/train/batch_upload.h"
#include "apps/train/evaluation.h"
#include "apps/train/loader.h"
#include "apps/train/loss_record.h"
#include "apps/train/pipeline.h"
#include "apps/train/spike_guard.h"
#include "apps/train/step_report.h"
#include "models/gpt2/gpt2.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"
#include "optim/speculative_updates.h"
#include "parallel/communicator_group.h"
#include "parallel/data_parallel.h"

namespace sluice {

struct TrainStep {
  double loss = 0;           ///< mean over the whole batch, before the update
  double gradient_norm = 0;  ///< before clipping
  double rate = 0;
  double loss_scale = 1;
  bool applied = true;  ///< false: nothing was changed
  /// Of an update that was not: what spiked, or where the first number that is not finite is.
  std::string reason{};
  bool weights_finite = true;  ///< as far as anybody has looked
  StepReport report{};
};

/// Where a rank has a part of the model alone.
struct DividedModel {
  Pipeline* pipeline = nullptr;         ///< its stages
  CommunicatorGroup* tensor = nullptr;  ///< those that divide the matrices with it
};

/// One update after another: forward and backward of this rank's micro-batches in order, the
/// reduction of gradients over the ranks, clipping, the optimizer. All ranks call the same
/// functions in the same order. It neither prints nor saves.
class Trainer {
 public:
  struct Options {
    std::int64_t batch_size = 1;   ///< sequences of an update, of all ranks together
    std::int64_t micro_batch = 1;  ///< sequences computed at a time; divides a rank's share
    std::int64_t seq_len = 1;
    double grad_clip = 1;
    double dropout = 0;
    std::uint64_t seed = 0;
    bool loss_scaling = false;  ///< for f16
    bool copy_stream = true;    ///< batches arrive beside the computing
    SpikeGuard::Options spikes{};
  };

  /// The model's forward passes wait, block by block, for updates that are still under way.
  Trainer(GPT2& model, ParameterSpace& space, DataParallel& ranks, const RateSchedule& schedule,
          const Options& options, const DividedModel& divided = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// The update of step `step`, counted from 0, from this rank's share of the batch.
  TrainStep step(std::int64_t step, const Batch& batch);

  /// The mean loss over the first `sequences` of `tokens`, or as many as there are; the replicas
  /// take turns. The same bits for every micro-batch and number of replicas.
  double evaluate(const TokenSource& tokens, std::int64_t sequences) const;
  double evaluate(const TokenSource& tokens, const EvaluationBatches& batches) const;

  /// Where inputs of blocks rest; its copies are part of the reports of steps.
  void set_block_inputs(HostStack* inputs);
  /// Updates that begin under the backward pass. With one replica and no pipeline alone.
  void set_speculation(SpeculativeUpdates* updates) { speculation_ = updates; }

  std::int64_t micro_batch() const { return options_.micro_batch; }
  LossScaler& scaler() { return scaler_; }
  SpikeGuard& spikes() { return spikes_; }
  /// What happened when in the last step.
  const std::vector<Timeline::Span>& spans() const { return spans_; }
  /// What they count from.
  Timeline::Clock::time_point started() const { return timeline_.started(); }

 private:
  Tensor forward(const Tensor& tokens, const Tensor& targets,
                 const LinearCrossEntropyOptions& options, const DropoutSource& dropout);
  /// `rate`: of the update that is going to follow; none: none is.
  void compute(const MicroBatches& batch, std::optional<double> rate = {});
  void compute_alone(const MicroBatches& batch, std::optional<double> rate);
  void compute_in_pipeline(const MicroBatches& batch);
  StreamedBytes moved();
  void diagnose(const MicroBatches& batch, TrainStep& result);
  std::vector<double> evaluate_here(const TokenSource& tokens,
                                    const EvaluationBatches& batches) const;

  GPT2& model_;
  ParameterSpace& space_;
  DataParallel& ranks_;
  RateSchedule schedule_;
  Options options_;
  Pipeline* pipeline_;
  CommunicatorGroup* tensor_;
  HostStack* block_inputs_ = nullptr;
  SpeculativeUpdates* speculation_ = nullptr;
  LossScaler scaler_;
  SpikeGuard spikes_;
  std::optional<BatchUpload> upload_;  ///< none with a pipeline, in which several are alive
  LossRecord losses_;
  std::vector<std::int64_t> ends_;  ///< in the parameter space: of each block, of all
  Timeline timeline_;
  std::vector<Timeline::Span> spans_;
};

}  // namespace sluice
