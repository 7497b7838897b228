#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// The place of an action in a schedule.
struct Position {
  int rank;
  int index;  ///< in the rank's row

  const Action& in(const Schedule& schedule) const {
    return schedule.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)];
  }
};

/// Throws Error. The message is `sentence`, and for each place the actions around it in its row,
/// with an arrow.
[[noreturn]] void refuse(const Schedule& schedule, const std::string& sentence,
                         const std::vector<Position>& places = {});

/// Finds the place of every action in a schedule that has all forwards and backwards.
class ActionPlaces {
 public:
  /// Throws Error if an action occurs twice.
  explicit ActionPlaces(const Schedule& schedule);

  const Messages& messages() const { return messages_; }
  /// The index in the row of the stage's rank; -1 if the action is not there.
  int index(const Action& action) const { return indices_[slot(action)]; }

 private:
  std::size_t slot(const Action& action) const;

  Messages messages_;
  std::size_t micro_batches_;
  std::vector<int> indices_;
};

/// Checks a schedule for deadlock by simulating all ranks without buffering: posting a receive does
/// not wait, a send waits for its receive, and an action that computes waits for the send of its
/// input. Throws Error naming the ranks that wait for one another if not all finish. Each rank's
/// row must be valid by itself.
void check_rendezvous(const Schedule& schedule, const ActionPlaces& places);

}  // namespace sluice
