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
#include "parallel/flight_recorder/shared_post_mortem.h"

namespace sluice {

/// Watches a rank, which may be stuck inside a library, from a thread of its own. It notices when
/// an operation that the rank waits in passes its deadline, and when another rank of this host has
/// died without a report. The ranks' ring files say what happened (flight_recorder.h).
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  /// Called once at most, on the watchdog's thread, with the sentence for the user. `seen_here`: a
  /// rank of this host has died, which no other host sees.
  using OnFailure = std::function<void(const std::string& sentence, bool seen_here)>;

  struct Options {
    std::chrono::milliseconds period{100};
    /// Time after a deadline in which the waiting thread may still report the timeout itself.
    std::chrono::milliseconds grace{3000};
    /// How long a rank must be gone before it counts as lost. Its own report may still be on its
    /// way.
    std::chrono::milliseconds lost_for{200};
    /// The ranks of this host: of others nobody here sees whether they are gone. If it is
    /// empty, all ranks are looked at.
    std::vector<int> here{};
    /// Reads the records of all ranks; none: those in the folder.
    ReadRecords records{};
    ReadRecords records_at_end{};  ///< the same, in a hurry: for on_lost_elsewhere
    /// Returns true once the process has been asked to end.
    std::function<bool()> ending{};
    /// Called once at most, with the sentence, if a rank of another host is lost or does not
    /// answer when this process is asked to end in the middle of an operation. A launcher asks
    /// because of that, and kills this one a second later.
    std::function<void(const std::string& sentence)> on_lost_elsewhere{};
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
    bool reported = false;  ///< it ended and reported it, or is not on this host
  };

  void run();
  std::optional<Wait> overdue(Clock::time_point now) const;
  bool lost_peer(Clock::time_point now);
  void look_elsewhere();
  bool is_held_up() const;
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
  bool ending_ = false;        ///< the same
  std::thread thread_;
};

}  // namespace sluice
