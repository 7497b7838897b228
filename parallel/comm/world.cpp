#include "parallel/comm/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "parallel/comm/transport/launcher.h"

namespace sluice {

namespace {

/// Ends this process if the ranks do not find each other in time: MPI_Init waits without bound for
/// a rank that is stopped, or whose host does not answer.
class StartWatch {
 public:
  StartWatch(const World::StartLimit& limit, int rank) {
    if (!limit.on_late) return;
    // Ranks that wait cannot agree on who speaks, but the first that ends makes the launcher end
    // the others within three seconds.
    const double later = 3 * std::min(rank, 20);
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                              std::chrono::duration<double>(limit.seconds + later));
    thread_ = std::thread([this, deadline, limit, rank] {
      std::unique_lock lock(mutex_);
      if (changed_.wait_until(lock, deadline, [this] { return started_; })) return;
      limit.on_late(
          fmt::format("rank {} has waited {:.6g} seconds for all ranks to start, and one has not: "
                      "look for a process that is stopped, or a host that does not answer",
                      rank, limit.seconds));
      std::_Exit(1);
    });
  }
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;
  ~StartWatch() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      started_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::thread thread_;
};

}  // namespace

World::World(const StartLimit& limit) {
  if (launched_rank() < 0) {
    note_ = find_launch(std::getenv).note;
    transport_ = make_self_transport();
    return;
  }
  const StartWatch watch(limit, launched_rank());
  mpi_.emplace();
  transport_ = mpi_->world();
}

std::shared_ptr<Communicator> World::communicator(std::shared_ptr<Monitor> monitor,
                                                  const Communicator::Options& options) const {
  if (size() == 1) return Communicator::planned(1, 0);
  return std::make_shared<Communicator>(transport_, std::move(monitor), options);
}

void World::leave_after_the_first(int exit_code) {
  leave(exit_code);
  if (rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
}

}  // namespace sluice
