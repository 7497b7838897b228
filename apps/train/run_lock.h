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
/// process however that ends. Where locks do not reach, to other computers on many network file
/// systems, the file itself tells: the writer counts it up every few seconds, and who finds a
/// writer of another computer that has not said that it ended waits to see whether it still counts.
/// The file stays when the lock is given up.
class RunLock {
 public:
  static constexpr std::chrono::milliseconds usual_beat{5000};

  /// Takes the lock, and makes the file if it is missing; changes nothing in one that is there.
  /// Throws Error (usage) where another process has the lock: names it, its computer and since
  /// when.
  explicit RunLock(const std::filesystem::path& file, std::chrono::milliseconds beat = usual_beat);
  ~RunLock();  ///< says that this writer has ended
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Says who writes the folder, from now on and every `beat`.
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
  std::thread thread_;  ///< counts
};

}  // namespace sluice
