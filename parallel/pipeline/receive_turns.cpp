#include "parallel/pipeline/receive_turns.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "kernels/base/error.h"
#include "parallel/pipeline/rendezvous.h"

namespace sluice {
namespace {

using Kind = Action::Kind;

/// A run of all ranks. A send waits until its receive is posted, and then the message takes place.
class Run {
 public:
  Run(const Schedule& schedule, int rank)
      : schedule_(schedule),
        places_(schedule),
        splits_(splits_backward(schedule)),
        rank_(rank),
        next_(schedule.ranks.size()),
        until_(schedule.ranks.size()) {}

  std::vector<ReceiveTurn> turns() {
    for (int rank = 0; rank < static_cast<int>(next_.size()); ++rank)
      awake_.push_back(rank);
    advance();
    while (!ends_.empty()) {
      // All actions that end now have ended before any message takes place, so that a receive
      // whose message comes just in time is not started an action too early.
      const int now = ends_.top().first;
      while (!ends_.empty() && ends_.top().first == now) {
        const int rank = ends_.top().second;
        ends_.pop();
        ++next(rank);
        awake_.push_back(rank);
      }
      now_ = now;
      advance();
    }
    for (std::size_t row = 0; row < next_.size(); ++row)
      check(next_[row] == schedule_.ranks[row].size(), "a schedule that deadlocks has no order");
    return std::move(turns_);
  }

 private:
  std::size_t& next(int rank) { return next_[static_cast<std::size_t>(rank)]; }
  const std::vector<Action>& row(int rank) const {
    return schedule_.ranks[static_cast<std::size_t>(rank)];
  }
  int rank_of(const Action& action) const { return places_.messages().rank_of(action.stage); }
  bool passed(const Action& action) {
    return next(rank_of(action)) > static_cast<std::size_t>(places_.index(action));
  }

  void advance() {
    while (!awake_.empty()) {
      const int rank = awake_.back();
      awake_.pop_back();
      while (next(rank) < row(rank).size() && perform(rank))
        ++next(rank);
    }
  }

  /// Returns false if the rank computes or waits.
  bool perform(int rank) {
    const Action& action = row(rank)[next(rank)];
    switch (action.kind) {
      case Kind::receive_input:
      case Kind::receive_gradient:
        awake_.push_back(rank_of(counterpart(action)));  // its sender may wait for it
        return true;
      case Kind::send_output:
      case Kind::send_gradient: {
        const Action receive = counterpart(action);
        const int receiver = rank_of(receive);
        if (!passed(receive)) return false;
        if (receiver == rank_) turns_.push_back({next(receiver), receive});
        awake_.push_back(receiver);
        return true;
      }
      case Kind::forward:
      case Kind::backward:
      case Kind::weight_gradients: {
        int& until = until_[static_cast<std::size_t>(rank)];
        if (until > now_) return false;
        const auto receive = places_.messages().received_by(action);
        if (receive && !passed(counterpart(*receive))) return false;
        until = now_ + (action.kind == Kind::backward && !splits_ ? 2 : 1);
        ends_.push({until, rank});
        return false;
      }
    }
    return false;
  }

  const Schedule& schedule_;
  const ActionPlaces places_;
  const bool splits_;
  const int rank_;
  std::vector<std::size_t> next_;   ///< each rank's next action, or the one that it computes
  std::vector<int> until_;          ///< when each rank's last computing action ends
  std::vector<int> awake_{};        ///< ranks that may be able to go on
  using End = std::pair<int, int>;  ///< time, rank
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_{};
  int now_ = 0;
  std::vector<ReceiveTurn> turns_{};
};

}  // namespace

std::vector<ReceiveTurn> receive_turns(const Schedule& lowered, int rank) {
  return Run(lowered, rank).turns();
}

}  // namespace sluice
