#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/checkpoint/spike_guard.h"
#include "apps/data/batch_upload.h"
#include "apps/data/tokens/loader.h"
#include "apps/trace/step_report.h"
#include "apps/train/evaluation.h"
#include "apps/train/pass_graphs.h"
#include "apps/train/pipeline.h"
#include "apps/train/step_numbers.h"
#include "models/decoder/decoder.h"
#include "optim/loss_scaler.h"
#include "optim/offload/weight_ring.h"
#include "optim/schedule.h"
#include "optim/speculative_updates.h"
#include "parallel/comm/communicator_group.h"
#include "parallel/data_parallel/data_parallel.h"

namespace sluice {

struct TrainStep {
  double loss = 0;           ///< mean over the whole batch, before the update
  double gradient_norm = 0;  ///< before clipping
  double rate = 0;
  double loss_scale = 1;
  bool applied = true;  ///< false: the update was skipped and nothing changed
  /// Why the update was skipped: which number spiked, or where the first non-finite number is.
  std::string reason{};
  bool weights_finite = true;  ///< false: a diagnosis has found a non-finite weight
  StepReport report{};
};

/// The parts of a replica that is divided between ranks, by pipeline or tensor parallelism.
struct DividedModel {
  Pipeline* pipeline = nullptr;         ///< this rank's stages; null: no pipeline
  CommunicatorGroup* tensor = nullptr;  ///< its tensor-parallel ranks; null: none
};

/// Runs training steps: forward and backward of this rank's micro-batches in order, reduction of
/// the gradients over ranks, clipping, and the optimizer's step. All ranks must call the same
/// functions in the same order. It neither prints nor saves.
class Trainer {
 public:
  struct Options {
    std::int64_t batch_size = 1;   ///< sequences per update, of all ranks together
    std::int64_t micro_batch = 1;  ///< sequences computed at a time; divides a rank's share
    std::int64_t seq_len = 1;
    std::int64_t head_chunk = LinearCrossEntropyOptions().chunk;  ///< tokens
    double grad_clip = 1;
    DropoutConfig dropout{};
    std::uint64_t seed = 0;
    bool loss_scaling = false;  ///< needed for f16
    bool copy_stream = true;    ///< copy batches on a stream of their own
    /// Run passes as CUDA graphs. Only for one rank on a GPU without dropout, whose state stays
    /// there.
    bool graphs = false;
    SpikeGuard::Options spikes{};

    bool drops_attention() const { return dropout.attention > 0; }
  };

  /// Makes the model's forward passes wait, block by block, for updates still under way.
  Trainer(Decoder& model, ParameterSpace& space, DataParallel& ranks, const RateSchedule& schedule,
          const Options& options, const DividedModel& divided = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Runs update `step`, counted from 0, on this rank's share of the batch.
  TrainStep step(std::int64_t step, const Batch& batch);

  /// Returns the mean loss over the first `sequences` of `tokens`, or as many as there are.
  /// Replicas take turns. The bits are the same for every micro-batch and number of replicas.
  double evaluate(const TokenSource& tokens, std::int64_t sequences) const;
  double evaluate(const TokenSource& tokens, const EvaluationBatches& batches) const;

  /// Sets the stack of block inputs in host memory, so that step reports include its copies.
  void set_block_inputs(HostStack* inputs);
  /// Sets the ring through which the weights and gradients of blocks stream. They must be stages of
  /// a layer-major pipeline of their own.
  void set_weight_ring(WeightRing* ring) { weights_ = ring; }
  /// Turns on updates that begin during the backward pass. Works only with one replica without a
  /// pipeline.
  void set_speculation(SpeculativeUpdates* updates) { speculation_ = updates; }

  const Options& options() const { return options_; }
  const RateSchedule& schedule() const { return schedule_; }
  LossScaler& scaler() { return scaler_; }
  SpikeGuard& spikes() { return spikes_; }
  /// The timeline's spans of the last step.
  const std::vector<Timeline::Span>& spans() const { return spans_; }
  /// The time that spans count from.
  Timeline::Clock::time_point started() const { return timeline_.started(); }

 private:
  /// Returns how many micro-batches this replica computes in a step.
  std::int64_t micro_batches_of_step() const;
  /// `rate`: learning rate of the update that follows; none: no update follows.
  void compute(const MicroBatches& batch, std::optional<double> rate = {});
  void compute_alone(const MicroBatches& batch, std::optional<double> rate);
  void compute_in_pipeline(const MicroBatches& batch);
  void enter(std::int64_t layer);
  void drain_gradients();
  StreamedBytes moved();
  double sum_of_losses(std::int64_t micro_batches);
  void diagnose(const MicroBatches& batch, TrainStep& result);
  std::vector<double> evaluate_here(const TokenSource& tokens,
                                    const EvaluationBatches& batches) const;

  Decoder& model_;
  ParameterSpace& space_;
  DataParallel& ranks_;
  RateSchedule schedule_;
  Options options_;
  Pipeline* pipeline_;
  CommunicatorGroup* tensor_;
  HostStack* block_inputs_ = nullptr;
  WeightRing* weights_ = nullptr;
  std::optional<int> undrained_;  ///< the section whose gradients are still to be drained
  SpeculativeUpdates* speculation_ = nullptr;
  LossScaler scaler_;
  SpikeGuard spikes_;
  std::optional<PassGraphs> graphs_;   ///< none: kernels are launched one by one
  std::optional<BatchUpload> upload_;  ///< none with a pipeline, which needs several at once
  StepNumbers numbers_;
  std::vector<std::int64_t> ends_;  ///< end of each block in the parameter space, then of all
  Timeline timeline_;
  std::vector<Timeline::Span> spans_;
};

}  // namespace sluice
