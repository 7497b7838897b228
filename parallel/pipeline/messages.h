#pragma once

#include <optional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// What the actions of a schedule need from one another, which follows from where its stages are.
class Messages {
 public:
  /// The rank of every stage.
  explicit Messages(std::vector<int> ranks) : ranks_(std::move(ranks)) {}

  int rank_of(int stage) const { return ranks_[static_cast<std::size_t>(stage)]; }
  /// The action whose result is the input of a forward or the gradient that a backward starts with.
  /// None: at the ends of the pipeline.
  std::optional<Action> producer(const Action& computing) const;
  /// What must be received for an action that computes, if its producer is on another rank.
  std::optional<Action> received_by(const Action& computing) const;
  /// What is sent of an action that computes, if the stage that needs it is on another rank.
  std::optional<Action> sent_by(const Action& computing) const;

 private:
  bool apart(int stage, int neighbour) const;

  std::vector<int> ranks_;
};

/// The receive of a send, the send of a receive.
Action counterpart(const Action& message);
/// The forward or backward that a message belongs to: whose result it sends, or that needs it.
Action computing_of(const Action& message);

}  // namespace sluice
