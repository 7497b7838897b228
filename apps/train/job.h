#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "apps/train/options.h"
#include "apps/train/ranks.h"
#include "engine/device_context.h"
#include "parallel/rank_monitor.h"
#include "parallel/world.h"

namespace sluice {

/// The processes that train together, from MPI's start to its end, and how they end: one of them
/// tells the user what went wrong.
class Job {
 public:
  /// Joins the others where a launcher has started several. All but the first become silent.
  Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  int local_size() const { return world_.local_size(); }
  /// Ranks of this computer that compute on the same GPU as this one, itself included, at most.
  int sharers_of_gpu() const { return sharers_of_gpu_; }

  /// Once the options are known: checks --dp, --pp and --tp against the ranks, divides the cores
  /// between them and begins to record what they do. `options` receives what was left to choose.
  void start(TrainOptions& options);
  Communicator& control() { return *control_; }
  /// Replicas and pipelines, once the options are known.
  const Mesh& mesh() const { return mesh_; }
  /// The replica that this rank works for.
  int replica() const { return mesh_.replica(rank()); }
  /// The communicators for training on `device`. Says how the ranks of GPUs exchange.
  Ranks ranks_on(const DevicePtr& device, const Exchanges& exchanges);

  /// nccl or staged, once there are communicators; "" where GPUs exchange nothing.
  const std::string& exchange() const { return exchange_; }

  /// Throws Error (usage) where a rank has another value than the first.
  void require_equal(std::string_view what, const std::string& mine);
  /// The same for a resolved configuration, but for what ranks may have of their own: paths,
  /// threads and faults.
  void require_equal_options(const std::string& resolved);
  /// What this rank does between operations, for reports.
  void note(std::string_view text);
  /// All have done their work.
  void finish();

  /// This rank is about to end with this message: whether it is to print it. Waits for its end if
  /// another rank has spoken, and leaves MPI without a word to the others, who are ended by that.
  bool may_report(std::string& message, bool usage);

 private:
  void choose_folder(const TrainOptions& options);
  std::shared_ptr<Communicator> group(const Group& group, const DevicePtr& device);

  World world_;
  std::shared_ptr<Communicator> control_;
  std::filesystem::path folder_;  ///< of the ranks' records
  bool folder_is_ours_ = false;
  int sharers_of_gpu_ = 1;
  Mesh mesh_;
  std::string exchange_;
  Communicator::Options communication_;
  std::string wish_;  ///< --communication
  std::shared_ptr<RankMonitor> monitor_;
};

}  // namespace sluice
