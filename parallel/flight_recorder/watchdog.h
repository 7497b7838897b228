#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/process_state.h"

namespace sluice {

/// A thread that looks after a rank that may be stuck inside a library. It notices when an
/// operation that the rank waits in passes its deadline, and when another rank of this host is gone
/// without having reported it. The ranks' ring files say what happened (flight_recorder.h).
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  /// Called once at most, on the watchdog's thread, with the sentence for the user.
  using OnFailure = std::function<void(const std::string& sentence)>;

  struct Options {
    std::chrono::milliseconds period{100};
    /// Time past a deadline before it counts, since the waiting thread normally reports it itself.
    std::chrono::milliseconds grace{3000};
    /// Time that a rank must be gone. Its own message to other ranks may still be on its way.
    std::chrono::milliseconds lost_for{200};
  };

  Watchdog(std::filesystem::path folder, int rank, int size, OnFailure on_failure, Options options);
  Watchdog(std::filesystem::path folder, int rank, int size, OnFailure on_failure)
      : Watchdog(std::move(folder), rank, size, std::move(on_failure), Options{}) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();  ///< stops the thread at once; waits for a call of on_failure

  // Safe to call from every thread.

  /// The rank waits until `deadline` for operation `number`, as FlightRecorder::begin numbered it.
  void begin(std::uint64_t number, Clock::time_point deadline);
  void end(std::uint64_t number);

 private:
  struct Wait {
    Clock::time_point begin, deadline;
  };
  /// Another rank of this host.
  struct Peer {
    std::optional<ProcessId> id;
    std::optional<Clock::time_point> gone_since;
    bool settled = false;  ///< it ended and reported it, or is not on this host
  };

  void run();
  std::optional<Wait> overdue(Clock::time_point now) const;
  bool lost_peer(Clock::time_point now);
  std::string sentence(const std::optional<Wait>& wait, Clock::time_point now) const;

  const std::filesystem::path folder_;
  const int rank_, size_;
  const OnFailure on_failure_;
  const Options options_;

  std::mutex mutex_;  ///< guards the next three members
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::map<std::uint64_t, Wait> waits_;  ///< by operation

  std::map<int, Peer> peers_;  ///< used only by the thread
  std::thread thread_;
};

/// Chooses one rank to report when several fail at the same moment. Returns true for the first
/// caller of all processes, using the file FOLDER/spoken, and for every caller if the folder cannot
/// be written to; false if it is gone, since the rank that reported may remove it.
bool speak_first(const std::filesystem::path& folder);

}  // namespace sluice
