#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/nccl/meeting_place.h"
#include "tests/nccl/operation.h"

namespace sluice::nccl_standin {

/// A communicator shares this with its kernels, which may outlive it.
struct Shared {
  Shared(MeetingPlace at, int own_rank, int all)
      : place(std::move(at)), rank(own_rank), ranks(all) {}

  MeetingPlace place;
  int rank, ranks;
  std::atomic<bool> aborted{false}, failed{false};
  std::atomic<int> unfinished{0};
  std::string error{};              ///< written before `failed`
  std::vector<std::string> left{};  ///< this rank's files of the last collective operations
};

/// An operation under way on a GPU.
struct Task {
  Operation operation;
  std::string name;  ///< of its files, without the rank
  std::optional<Bytes> received{};
};

/// The name of a rank's file.
std::string of_rank(const std::string& name, int rank);

/// One operation or group, as one kernel.
class Kernel {
 public:
  /// `wrong`: the results have a wrong bit.
  Kernel(std::shared_ptr<Shared> shared, std::vector<Task> tasks, bool wrong)
      : shared_(std::move(shared)), tasks_(std::move(tasks)), wrong_(wrong) {}

  /// Shows the other ranks what this one contributes.
  void start();
  /// True when all that it waits for is there. False for ever if the ranks do not agree.
  bool ready();
  /// Writes the results.
  void end();

 private:
  static void spoil(const Operation& operation);
  bool fail(const std::string& text);
  bool receive(Task& task);
  bool all_agree(const Task& task);

  std::shared_ptr<Shared> shared_;
  std::vector<Task> tasks_;
  bool wrong_;
};

/// Memory of a GPU, beside the program's.
class DeviceMemory {
 public:
  /// Takes memory of the stream's GPU; always of the same GPU.
  void take(cudaStream_t stream, std::size_t bytes);
  void give_back();

 private:
  void* device_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Gives the GPU of the stream a kernel that starts when fewer than `most` others are on it.
void launch(const std::shared_ptr<Shared>& shared, std::vector<Task> tasks, cudaStream_t stream,
            int most, bool wrong);

}  // namespace sluice::nccl_standin
