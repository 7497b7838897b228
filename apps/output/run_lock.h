#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "engine/process_state.h"

namespace sluice {

/// Lets one process write a folder at a time. The lock is flock() on a file, which ends with its
/// process, however that ends. On many network file systems locks do not reach other computers.
/// There the writer increments a counter in the file every few seconds. A process that finds a
/// writer of another computer with no recorded end waits to see whether the counter still changes.
/// The file stays when the lock is released.
class RunLock {
 public:
  static constexpr std::chrono::milliseconds usual_beat{5000};

  /// Takes the lock and creates the file if it is missing; does not change an existing one. Throws
  /// Error (usage) if another process has the lock; the message names the process, its computer and
  /// since when.
  explicit RunLock(const std::filesystem::path& file, std::chrono::milliseconds beat = usual_beat);
  ~RunLock();  ///< records that this writer has ended
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Records who writes the folder, now and again every `beat`.
  void begin(const std::string& program);

 private:
  void write(bool ended);
  void count();

  std::filesystem::path path_;
  int descriptor_;
  std::chrono::milliseconds beat_;
  ProcessId self_;
  std::string program_, since_;
  std::int64_t beats_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;  ///< increments the counter
};

}  // namespace sluice
