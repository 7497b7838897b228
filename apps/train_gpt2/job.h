#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/machine.h"
#include "apps/config/train_config.h"
#include "apps/train/pipeline.h"
#include "apps/train/ranks.h"
#include "engine/device_context.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/device_backend.h"
#include "parallel/comm/world.h"
#include "parallel/flight_recorder/rank_monitor.h"

namespace sluice {

/// How this rank's GPU exchanges data with others, before the training has any memory.
struct GpuLinks {
  std::map<std::vector<int>, DeviceLink> by_members{};  ///< by the ranks of a group
  std::size_t bytes = 0;                                ///< of GPU memory that they take
};

/// The processes that train together, from MPI's start to its end. If the job fails, one of them
/// tells the user what went wrong.
class Job {
 public:
  /// Joins the other ranks if a launcher has started several. All but rank 0 become silent. The
  /// arguments of main() may hold --collective-timeout, which bounds the start too.
  Job(int argc, const char* const* argv);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  int local_size() const { return world_.local_size(); }
  /// Returns the number of ranks, this one included, that compute on this rank's GPU.
  int sharers_of_gpu() const { return gpu_.sharers; }
  /// Returns where this rank computes: "rank 3 on hostb" and, once connect() has taken it, its GPU.
  std::string place() const;

  /// Checks --dp, --pp and --tp against the number of ranks, divides the cores among the ranks and
  /// begins to record what they do. Fills in the values that `options` leaves open.
  void start(MachineConfig& machine, ParallelConfig& parallel);
  Communicator& control() { return *control_; }
  /// Returns the replicas, stages and shards; call it after start().
  const Mesh& mesh() const { return mesh_; }
  /// Returns the replica that this rank works for.
  int replica() const { return mesh_.replica(rank()); }
  /// Connects the GPU `device`, of which no memory is reserved yet, with those of this rank's
  /// groups. Prints how they exchange data. `pipeline`: null if there is none. Throws Error (usage)
  /// if ranks have other kinds of devices or other schedules.
  GpuLinks connect(const DevicePtr& device, const PipelinePlan* pipeline);
  /// Makes the communicators for training on `device`. They own the links, so that NCCL ends before
  /// memory is freed.
  Ranks ranks_on(const DevicePtr& device, GpuLinks links, const Exchanges& exchanges);

  /// Returns "nccl" or "staged" once GPUs are connected; "" if they exchange nothing.
  const std::string& exchange() const { return exchange_; }

  /// Throws Error (usage) if a rank's facts differ from rank 0's. All ranks call it.
  void require_equal(const std::vector<Fact>& facts);
  void require_equal(std::string_view what, const std::string& mine);
  /// The same for a resolved configuration, except for options that ranks may set for themselves:
  /// paths, threads and injected faults.
  void require_equal_options(const std::string& resolved);
  /// Records what this rank does between operations, for reports.
  void note(std::string_view text);
  /// Ends the job once all ranks have done their work.
  void finish();

  /// Called when this rank is about to end with the error `message`. Returns true if this rank is
  /// to print it; it may then also name the rank and its last operation. If another rank reports,
  /// waits a little for the launcher to end this rank, then returns false. Skips MPI_Finalize, so
  /// that the launcher ends the other ranks.
  bool may_report(std::string& message, int exit_code);

 private:
  void choose_folder(const ParallelConfig& parallel, Communicator& local);
  std::vector<RankPlace> places(Communicator& local);
  /// Sees to it that the job ends on all hosts though the network may be down.
  void end_launcher_if_needed();
  std::shared_ptr<Communicator> group(const Group& group, const DevicePtr& device,
                                      const GpuLinks& links);

  World world_;
  std::shared_ptr<Communicator> control_;
  std::filesystem::path folder_;  ///< folder of the ranks' records
  bool folder_is_ours_ = false;
  GpuOfRank gpu_;
  bool on_gpu_ = false;
  Mesh mesh_;
  std::string exchange_;
  Communicator::Options communication_;
  std::optional<GpuExchange> gpu_exchange_;  ///< --communication
  std::shared_ptr<RecordExchange> records_;
  std::shared_ptr<RankMonitor> monitor_;
};

}  // namespace sluice
