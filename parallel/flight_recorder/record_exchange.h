#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/transport/mailbox.h"
#include "parallel/flight_recorder/flight_recorder.h"

namespace sluice {

/// Where a rank runs.
struct RankPlace {
  int first = 0;  ///< the lowest rank of its host, which tells hosts apart
  std::string host;
};

/// Brings the records of all hosts together when something fails. The ranks of a host keep
/// theirs in a folder of its own; one of them sends all of these to who asks. A thread of its own
/// reads and writes letters, since MPI may never return once a peer is gone: whoever asks waits for
/// the thread no longer than stated. Thread-safe.
class RecordExchange {
 public:
  /// `places` has the place of every rank. `mailbox`: none if this MPI cannot be used by two
  /// threads at a time; then other hosts do not answer.
  RecordExchange(std::unique_ptr<Mailbox> mailbox, std::filesystem::path folder, int rank,
                 std::vector<RankPlace> places);
  RecordExchange(const RecordExchange&) = delete;
  RecordExchange& operator=(const RecordExchange&) = delete;
  ~RecordExchange();  ///< waits for the thread, but not for a call of MPI that does not return

  const std::filesystem::path& folder() const { return folder_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(places_.size()); }
  bool several_hosts() const { return !others_.empty(); }
  /// Returns the ranks of this host, ascending.
  std::vector<int> ranks_here() const;

  /// Returns the records of all ranks, and leaves copies of those of other hosts in the folder.
  /// Ranks of a host that does not answer within `patience` are RankRecord::silent.
  std::vector<RankRecord> collect(std::chrono::milliseconds patience);

  /// Tells the other hosts that the failure has been reported, so that they need not. Takes a
  /// fifth of a second.
  void tell_reported();
  /// Returns true if this host is to report what all have noticed: the first one does so at
  /// once, the next ones two seconds later if nobody has until then, for a report of a host
  /// that is cut off from the launcher is lost. Waits that long.
  bool await_turn();
  bool reported_elsewhere() const;

 private:
  struct Letters;

  int here() const { return first_of(rank_); }
  int first_of(int rank) const { return places_[static_cast<std::size_t>(rank)].first; }
  std::vector<RankRecord> records_of(const std::string& letter) const;

  const std::filesystem::path folder_;
  const int rank_;
  const std::vector<RankPlace> places_;
  std::vector<int> others_;           ///< the first ranks of the other hosts
  std::shared_ptr<Letters> letters_;  ///< shared with the thread, which may outlive this
};

}  // namespace sluice
