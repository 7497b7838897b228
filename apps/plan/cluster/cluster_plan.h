#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/plan/cost/scaling.h"
#include "apps/plan/planner.h"

namespace sluice {

/// A request for the best ways to train on `gpus` GPUs, with the values that flags fix.
struct ClusterTask {
  TrainConfig options;  ///< --dp, --micro-batch, --recompute and others fix their values
  std::optional<std::int64_t> pp{}, tp{}, zero{};  ///< none: any; those in `options` are ignored
  DeviceProfile profile;
  Precision precision{};  ///< resolved for these options on one GPU
  DecoderConfig config{};
  std::int64_t seq_len = 0;
  std::int64_t gpus = 1;
  std::int64_t top = 10;  ///< number of meshes to report
  std::shared_ptr<ModelLayouts> layouts = std::make_shared<ModelLayouts>();  ///< of all candidates
};

/// Predicted seconds of a step, split by cause.
struct ClusterTime {
  double compute = 0;   ///< mean over ranks, including waits for other shards
  double bubble = 0;    ///< extra time of the pipeline schedule with free messages
  double messages = 0;  ///< extra time for messages between stages
  double tensor = 0;    ///< part of `compute`: waits for other shards
  double table = 0;     ///< sum of the tied table's gradient over both pipeline ends
  double data = 0;      ///< exposed traffic among replicas: gradients, with ZeRO also weights
  double update = 0, stall = 0;

  double total() const { return compute + bubble + messages + table + data + update + stall; }
  double exposed() const { return messages + tensor + table + data; }
};

/// One way to train on all GPUs of the cluster.
struct ClusterCandidate {
  Mesh mesh{};
  std::int64_t zero = 0, micro_batches = 1;
  std::optional<ScheduleName> pipeline{};  ///< none: no pipeline
  std::int64_t virtual_stages = 1;
  MemoryChoice choice{};
  MemoryPlan memory{};  ///< of the rank that needs most
  ClusterTime time{};
  double tokens_per_second = 0;
};

/// Formats the candidate as flags of `train_gpt2`: everything but the model and the batch.
std::string to_flags(const ClusterCandidate& candidate, const TrainConfig& options);
/// Returns the options with those flags applied.
TrainConfig options_of(const ClusterCandidate& candidate, const TrainConfig& options);

struct ClusterPlan {
  std::vector<ClusterCandidate> candidates{};  ///< the best of each mesh, fastest first
  std::int64_t meshes = 0;                     ///< number of meshes considered
  std::int64_t refused = 0;  ///< meshes that do not divide the batch or contradict a flag
  std::int64_t unfit = 0;    ///< meshes in which nothing fits the budgets
  std::int64_t slower = 0;   ///< meshes skipped: slower than `candidates` at best
  std::optional<ClusterCandidate> nearest{};  ///< set only if nothing fits
  std::size_t excess = 0;                     ///< bytes by which `nearest` exceeds the budgets
};

/// Returns all meshes with dp x pp x tp = `gpus` that the model and the flags allow, whatever the
/// batch. `tp` stays within a node unless --tp is given. A stage has at least one block.
std::vector<Mesh> meshes_of(const ClusterTask& task);

/// Returns the candidates of one mesh: they differ in schedule, ZeRO and micro-batches, recompute
/// nothing and keep all state on the device in fp32. Empty if the mesh cannot divide the batch.
std::vector<ClusterCandidate> candidates_of(const ClusterTask& task, const Mesh& mesh);

/// Predicts a step of a candidate (Narayanan et al., "Efficient large-scale language model training
/// on GPU clusters", 2021, section 3). `resident` and `streamed` are bytes of state on rank 0,
/// undivided by ZeRO. Without a pipeline it calls predict_ranks. With a pipeline it adds to the
/// simulated time of the stages the sum of the tied table's gradient, the part of the reduction
/// among replicas that the last backward pass does not hide, and the update.
ClusterTime predict_candidate(const ClusterTask& task, const ClusterCandidate& candidate,
                              double resident, double streamed);

/// Returns the predicted seconds of candidates that differ in --zero alone, without state.
std::vector<double> predict_without_state(const ClusterTask& task,
                                          const std::vector<ClusterCandidate>& candidates);

/// Returns the fastest candidates that fit. Like plan_run, uses rounded state only if no mesh fits
/// without it. Throws Error (usage) if the work cannot be divided on any mesh.
ClusterPlan plan_cluster(const ClusterTask& task);

}  // namespace sluice
