#pragma once

#include <optional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// The dependences between the actions of a schedule, which follow from the ranks of its stages.
class Messages {
 public:
  /// `ranks` has the rank of every stage.
  explicit Messages(std::vector<int> ranks) : ranks_(std::move(ranks)) {}

  int rank_of(int stage) const { return ranks_[static_cast<std::size_t>(stage)]; }
  /// The action whose result is the input of a forward or the gradient with which a backward
  /// starts. None at the ends of the pipeline.
  std::optional<Action> producer(const Action& computing) const;
  /// The receive that a forward or backward needs; none if its producer is not on another rank.
  std::optional<Action> received_by(const Action& computing) const;
  /// The send after a forward or backward; none if no stage on another rank needs its result.
  std::optional<Action> sent_by(const Action& computing) const;

 private:
  bool apart(int stage, int neighbour) const;

  std::vector<int> ranks_;
};

/// The receive that belongs to a send, or the send that belongs to a receive.
Action counterpart(const Action& message);
/// The forward or backward whose result a message sends, or that needs what it receives.
Action computing_of(const Action& message);

}  // namespace sluice
