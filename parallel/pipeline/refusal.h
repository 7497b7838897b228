#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/messages.h"
#include "parallel/pipeline/schedule.h"

namespace sluice {

/// Where an action is.
struct Place {
  int rank;
  int index;  ///< in the rank's row

  const Action& in(const Schedule& schedule) const {
    return schedule.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)];
  }
};

/// Throws an Error: the sentence, then for each place the row around it with an arrow.
[[noreturn]] void refuse(const Schedule& schedule, const std::string& sentence,
                         const std::vector<Place>& places = {});

/// Where every action of a schedule is, for schedules that have all forwards and backwards.
class ActionPlaces {
 public:
  /// Refuses what is there twice.
  explicit ActionPlaces(const Schedule& schedule);

  const Messages& messages() const { return messages_; }
  /// In the row of the stage's rank; -1: it is not there.
  int index(const Action& action) const { return indices_[slot(action)]; }

 private:
  std::size_t slot(const Action& action) const;

  Messages messages_;
  std::size_t micro_batches_;
  std::vector<int> indices_;
};

}  // namespace sluice
