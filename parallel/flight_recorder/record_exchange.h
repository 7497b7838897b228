#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel/comm/transport/mailbox.h"
#include "parallel/flight_recorder/flight_recorder.h"

namespace sluice {

/// Where a rank runs.
struct RankPlace {
  int first = 0;  ///< the lowest rank of its computer, which tells computers apart
  std::string host;
};

/// Brings the records of all computers together when something fails. The ranks of a computer keep
/// theirs in a folder of its own; one of them sends all of these to who asks. Thread-safe.
class RecordExchange {
 public:
  /// `places` has the place of every rank. `mailbox`: none if this MPI cannot be used by two
  /// threads at a time; then other computers do not answer.
  RecordExchange(std::unique_ptr<Mailbox> mailbox, std::filesystem::path folder, int rank,
                 std::vector<RankPlace> places);

  bool several_hosts() const { return !others_.empty(); }

  /// Answers what others have asked. To be called every tenth of a second or so.
  void serve();

  /// Returns the records of all ranks, and leaves copies of those of other computers in the folder.
  /// Ranks of a computer that does not answer within `patience` are RankRecord::silent.
  std::vector<RankRecord> collect(std::chrono::milliseconds patience);

  /// Tells the other computers that the failure has been reported, so that they need not.
  void tell_reported();
  /// Returns true if this computer is to report what all have noticed: the first one does so at
  /// once, the next ones two seconds later if nobody has until then, for a report of a computer
  /// that is cut off from the launcher is lost. Waits that long.
  bool await_turn();
  bool reported_elsewhere();

 private:
  void handle(const Mailbox::Letter& letter);
  bool answers_for_its_host() const;
  std::string records_here() const;
  void take(const std::string& letter);

  std::mutex mutex_;  ///< of the mailbox and of answers_
  const std::unique_ptr<Mailbox> mailbox_;
  const std::filesystem::path folder_;
  const int rank_;
  const std::vector<RankPlace> places_;
  std::vector<int> others_;                         ///< the first ranks of the other computers
  std::map<int, std::vector<RankRecord>> answers_;  ///< by the first rank of the computer
  std::atomic<bool> reported_ = false;
};

}  // namespace sluice
