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

/// A thread that looks after a rank that may be stuck inside a library: it notices when what the
/// rank waits in passes its deadline, and when another rank of this host is gone without having
/// told anybody. Rank files say what happened (ring_file.h).
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  /// Called once at most, from the watchdog's thread, with the sentence for the user.
  using OnFailure = std::function<void(const std::string& sentence)>;

  struct Options {
    std::chrono::milliseconds period{100};
    /// How long a deadline may have passed: the thread that waits normally reports it itself.
    std::chrono::milliseconds grace{3000};
    /// How long a rank must be gone. What tells others of its end may still be on its way.
    std::chrono::milliseconds lost_for{200};
  };

  Watchdog(std::filesystem::path folder, int rank, int size, OnFailure on_failure, Options options);
  Watchdog(std::filesystem::path folder, int rank, int size, OnFailure on_failure)
      : Watchdog(std::move(folder), rank, size, std::move(on_failure), Options{}) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();  ///< stops the thread at once; waits for a call of on_failure

  // Safe from every thread.

  /// The operation that RingFile::begin gave this number is waited for until `deadline`.
  void begin(std::uint64_t number, Clock::time_point deadline);
  void end(std::uint64_t number);

 private:
  friend class WatchdogScope;

  struct Wait {
    std::string what;  ///< empty: an operation
    Clock::time_point begin, deadline;
  };
  /// Another rank of this host.
  struct Peer {
    std::optional<ProcessId> id;
    std::optional<Clock::time_point> gone_since;
    bool settled = false;  ///< it ended and told so, or is not of this host
  };

  std::uint64_t begin_scope(std::string what, Clock::time_point deadline);
  void end_scope(std::uint64_t scope);
  void run();
  std::optional<Wait> overdue(Clock::time_point now) const;
  bool lost_peer(Clock::time_point now);
  std::string sentence(const std::optional<Wait>& wait, Clock::time_point now) const;

  const std::filesystem::path folder_;
  const int rank_, size_;
  const OnFailure on_failure_;
  const Options options_;

  std::mutex mutex_;  ///< of the next four
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::map<std::uint64_t, Wait> operations_, scopes_;
  std::uint64_t next_scope_ = 0;

  std::map<int, Peer> peers_;  ///< of the thread
  std::thread thread_;
};

/// A deadline for what is not an operation, such as "setting up NCCL", while it lives.
class WatchdogScope {
 public:
  WatchdogScope(Watchdog& watchdog, std::string what, double seconds);
  WatchdogScope(const WatchdogScope&) = delete;
  WatchdogScope& operator=(const WatchdogScope&) = delete;
  ~WatchdogScope();

 private:
  Watchdog& watchdog_;
  std::uint64_t scope_;
};

/// When several ranks fail at the same moment one should tell: true for the first caller of all
/// processes, by FOLDER/spoken, and for everybody where the folder cannot be written to; false
/// where it is gone, since the one who spoke may remove it.
bool speak_first(const std::filesystem::path& folder);

}  // namespace sluice
