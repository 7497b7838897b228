#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/planner.h"
#include "apps/train/scaling.h"

namespace sluice {

/// What is asked of a cluster: the best way to train on so many GPUs, with what flags have fixed.
struct ClusterTask {
  TrainOptions options;  ///< --dp, --micro-batch, --recompute and the like fix what they say
  std::optional<std::int64_t> pp{}, tp{}, zero{};  ///< as given; of the options they do not count
  DeviceProfile profile;
  Precision precision{};  ///< of the setup that the options come to on one GPU
  GPT2Config config{};
  std::int64_t seq_len = 0;
  std::int64_t gpus = 1;
  std::int64_t top = 10;  ///< meshes whose best way is wanted
};

/// Seconds of a step, by the cost model, and where they go.
struct ClusterTime {
  double compute = 0;   ///< of a rank, in the mean; waits for other shards are included
  double bubble = 0;    ///< what a pipeline takes beyond that, if messages were free
  double messages = 0;  ///< what messages between stages add
  double tensor = 0;    ///< of `compute`, waits for other shards
  double table = 0;     ///< both ends of a pipeline adding up the tied table's gradient
  double data = 0;      ///< exposed: gradients, and with ZeRO-1 weights, among replicas
  double update = 0, stall = 0;

  double total() const { return compute + bubble + messages + table + data + update + stall; }
  double exposed() const { return messages + tensor + table + data; }
};

/// A way to train, on every GPU of the cluster.
struct ClusterWay {
  Mesh mesh{};
  std::int64_t zero = 0, micro_batches = 1;
  std::string pipeline{};  ///< schedule; empty: no pipeline
  std::int64_t virtual_stages = 1;
  MemoryChoice choice{};
  MemoryPlan memory{};  ///< of the rank with most
  ClusterTime time{};
  double tokens_per_second = 0;
};

/// All that `train_gpt2` has to be told beside the model and the batch.
std::string to_flags(const ClusterWay& way, const TrainOptions& options);
/// The options as those flags change them.
TrainOptions options_of(const ClusterWay& way, const TrainOptions& options);

struct ClusterPlan {
  std::vector<ClusterWay> ways{};  ///< the best of each mesh, fastest first
  std::int64_t meshes = 0;         ///< that were looked at
  std::int64_t refused = 0;        ///< the batch, or a flag, cannot be divided so
  std::int64_t unfit = 0;          ///< in no way within the budgets
  std::int64_t slower = 0;         ///< than all of `ways`, even if everything fits: not counted
  std::optional<ClusterWay> nearest{};  ///< where none fits
  std::size_t excess = 0;               ///< bytes that the nearest has too many
};

/// dp x pp x tp = `gpus`, all that the model and the task's flags allow, whatever the batch. `tp`
/// stays within a node unless it is given. A stage has a block at least.
std::vector<Mesh> meshes_of(const ClusterTask& task);

/// Ways of one mesh: schedules, ZeRO-1 and micro-batches, with nothing computed again and all state
/// on the device in fp32. Empty if the batch cannot be divided so.
std::vector<ClusterWay> ways_of(const ClusterTask& task, const Mesh& mesh);

/// A step of a way (Narayanan et al., "Efficient large-scale language model training on GPU
/// clusters", 2021, section 3). `resident` and `streamed` are bytes of state of the first rank,
/// undivided by ZeRO-1. Without a pipeline it is predict_ranks. With one, the stages' times go
/// through the simulator; then come the tied table's sum, the reduction among replicas as far as
/// the last backward pass does not hide it, and the update.
ClusterTime predict_way(const ClusterTask& task, const ClusterWay& way, double resident,
                        double streamed);

/// A way with what the planner takes for it: what is computed again, and where state rests, so that
/// the ends of a pipeline fit, which have most of it.
struct ClusterFit {
  ClusterWay way;  ///< where it does not fit: the nearest, without a time
  bool fits = false;
  std::size_t excess = 0;  ///< bytes too many, by estimate or by count
};
/// Keeps the way's state layout and dtype of gradients. Throws Error (usage) where flags refuse it.
ClusterFit fit_way(const ClusterTask& task, ClusterWay way);

/// What fits and is fastest. State that would be rounded is taken only where no mesh has another
/// way, as plan_run does. Throws Error (usage) where nothing can be divided so.
ClusterPlan plan_cluster(const ClusterTask& task);

}  // namespace sluice
