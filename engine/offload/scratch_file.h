#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/io/file.h"

namespace sluice {

/// A file without a name, for data that a process keeps on a disk while it runs. Its space is free
/// again when the process ends, however it ends, and no other process can open it. Transfers bypass
/// the system's page cache (O_DIRECT) if the file system allows that, since the cache would take
/// the memory that the file is meant to save.
///
/// Jobs do transfers beside the caller, on threads. These were as fast as io_uring for transfers of
/// megabytes (docs/results/performance.md), which Docker's default seccomp profile forbids.
class ScratchFile {
 public:
  /// Offsets, lengths and addresses are multiples of this.
  static constexpr std::size_t alignment = 4096;

  /// Takes `bytes` of the disk of `folder` at once, all zero. Throws Error if the folder does not
  /// allow that (usage) or the disk lacks the space.
  ScratchFile(const std::filesystem::path& folder, std::uint64_t bytes);
  /// Waits for the jobs.
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  /// Says what is unusual about the folder, in a sentence for the user; empty if nothing is.
  const std::string& caution() const { return caution_; }

  /// Thread-safe for different parts of the file. Throws Error, with the folder's name.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  void write(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Runs a job on a thread. Jobs begin in the order of the calls, and some run at the same time.
  /// So a job may wait for an earlier one, never for a later one. The future throws its error.
  std::shared_future<void> start(std::function<void()> work);

 private:
  /// A packaged_task would keep the work, with the futures that it waits for, as long as its own
  /// future lives.
  struct Job {
    std::function<void()> work;
    std::promise<void> done{};
  };
  void run_jobs();

  File file_;
  bool direct_ = false;  ///< transfers bypass the page cache
  std::string caution_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice
