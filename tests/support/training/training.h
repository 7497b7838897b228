#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/training.h"
#include "engine/host_memory.h"

// Whole training runs that tests compare with one another bit by bit.

namespace sluice::test {

/// The training task. A MemoryChoice decides how its memory is used.
struct TrainingTask {
  /// The model is narrow, yet every matrix of its blocks counts as a large one.
  DecoderConfig config{
      .n_layer = 3, .n_head = 2, .n_embd = 64, .vocab_size = 64, .n_positions = 16};
  DType dtype = DType::f32;
  std::int64_t batch_size = 2, seq_len = 16;
  double grad_clip = 0, rate = 3e-3, dropout = 0;
  std::string optimizer = "adamw";
  std::int64_t zero = 0;
  bool overlap = true;
  bool cuda_graph = false;
  std::string bucket_size = "16KiB";
  /// The number of replicas, each of which is a pipeline if `pp` or `pipeline` asks for one.
  std::optional<std::int64_t> dp{};
  std::int64_t pp = 1, tp = 1, virtual_stages = 1;
  bool sequence_parallel = false;
  std::string pipeline{}, pipeline_split = "blocks", stash = "graph";

  TrainConfig options() const;
  RunSetup setup(DeviceKind kind) const;
  /// Includes the pipeline, if there is one, for the micro-batch size of `choice`.
  RunSetup setup(DeviceKind kind, const MemoryChoice& choice) const;
  Batch batch(std::int64_t step) const;
  /// Returns a choice that keeps all optimizer state on the device.
  MemoryChoice resident(StateLayout layout = StateLayout::fp32, std::int64_t micro_batch = 1) const;
};

/// A family's model (preset()) with so many blocks, as narrow as the task's.
DecoderConfig small_model(const char* name, std::int64_t blocks);

/// Changes the choice so that the state of all but the lowest blocks is in host memory.
MemoryChoice offloaded(MemoryChoice choice, std::int64_t resident, std::int64_t chunk, int staging,
                       std::int64_t by_cpu = 0, std::int64_t speculative = 0);
/// Changes it so that weights, gradients and state of the highest blocks are in host memory.
MemoryChoice with_weights_offloaded(MemoryChoice choice, std::int64_t blocks,
                                    bool embeddings = false);
/// Changes what its blocks recompute: "gelu", or "block*1,gelu".
MemoryChoice recomputing(MemoryChoice choice, const std::string& modes);

/// Returns the share of a batch for one of several ranks; `rows` is the whole batch's rows.
Batch share_of(const Batch& batch, int rank, int ranks, std::int64_t rows);

/// The result of a run, for comparison bit by bit.
struct RunBits {
  std::map<std::string, std::vector<std::byte>> values;
  std::vector<std::vector<double>> steps;  ///< loss, norm, rate, loss scale, applied
};

/// Returns the first difference; "" if all bits are equal.
std::string first_difference(const RunBits& a, const RunBits& b);

/// Completes an array of which each rank has some bytes and zeros elsewhere, or all of it.
void merge(Communicator& ranks, std::span<std::byte> data);

class TrainingRun {
 public:
  /// Starts from random weights on `device`; `memory` may be host memory allocated beforehand. If
  /// there are several ranks, this run is one of them and takes its share of every batch.
  TrainingRun(const TrainingTask& task, const MemoryChoice& choice, const DevicePtr& device,
              HostMemory memory = {}, const Ranks& ranks = single_rank());

  Training& training() { return training_; }
  const HostMemory& host() const { return host_; }
  const DevicePtr& device() const { return device_; }
  std::int64_t step_number() const { return step_; }
  void continue_from(std::int64_t step) { step_ = step; }

  const TrainStep& step();
  RunBits train(std::int64_t steps);
  /// Runs forward and backward of micro-batches in turn without the trainer, adds to the existing
  /// gradients, and returns the micro-batches' losses.
  std::vector<double> accumulate(const Batch& batch, std::int64_t step, std::int64_t micro_batch);
  /// Waits for updates in flight, then reads everything. If there are several ranks, rank 0 gets
  /// all of it.
  RunBits bits();
  const std::vector<TrainStep>& steps() const { return steps_; }

  /// Sets one element of a parameter.
  void set_weight(const std::string& name, std::int64_t element, float value);

 private:
  TrainingTask task_;
  DevicePtr device_;
  HostMemory host_;
  Training training_;
  std::int64_t step_ = 0;
  std::vector<TrainStep> steps_;
};

}  // namespace sluice::test
