#include "parallel/pipeline/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "parallel/pipeline/schedule_text.h"

namespace sluice {
namespace {

using Kind = Action::Kind;

constexpr int action_kinds = 7;
constexpr int around = 4;  // cells shown before an action and after it

std::string row_of(const Schedule& schedule, const Position& place) {
  const auto& row = schedule.ranks[static_cast<std::size_t>(place.rank)];
  const int size = static_cast<int>(row.size());
  const int begin = std::max(place.index - around, 0);
  const int end = std::min(place.index + around + 1, size);
  std::string text = fmt::format("\n  rank {}:{}", place.rank, begin > 0 ? " ..." : "");
  for (int i = begin; i < end; ++i)
    text += fmt::format(" {}{}", i == place.index ? "--> " : "",
                        to_text(Position{place.rank, i}.in(schedule)));
  return text + (end < size ? " ..." : "");
}

class Rendezvous {
 public:
  Rendezvous(const Schedule& schedule, const ActionPlaces& places)
      : schedule_(schedule),
        places_(places),
        next_(schedule.ranks.size()),
        begun_(schedule.ranks.size()),
        listed_(schedule.ranks.size()) {}

  void run() {
    for (int rank = static_cast<int>(next_.size()); rank-- > 0;)
      wake(rank);
    while (!awake_.empty()) {
      const int rank = awake_.back();
      awake_.pop_back();
      listed_[static_cast<std::size_t>(rank)] = false;
      advance(rank);
    }
    for (int rank = 0; rank < static_cast<int>(next_.size()); ++rank)
      if (!at_end(rank)) refuse_cycle(rank);
  }

 private:
  int& next(int rank) { return next_[static_cast<std::size_t>(rank)]; }
  int next(int rank) const { return next_[static_cast<std::size_t>(rank)]; }
  bool at_end(int rank) const {
    return next(rank) == static_cast<int>(schedule_.ranks[static_cast<std::size_t>(rank)].size());
  }
  const Action& current(int rank) const { return Position{rank, next(rank)}.in(schedule_); }
  int rank_of(const Action& action) const { return places_.messages().rank_of(action.stage); }

  void wake(int rank) {
    if (listed_[static_cast<std::size_t>(rank)]) return;
    listed_[static_cast<std::size_t>(rank)] = true;
    awake_.push_back(rank);
  }

  /// Advances a rank as far as possible. Each action wakes the other side of its message only once,
  /// when it begins; otherwise two ranks that wait for each other would wake each other for ever.
  void advance(int rank) {
    int& begun = begun_[static_cast<std::size_t>(rank)];
    for (; !at_end(rank); ++next(rank)) {
      const Action& action = current(rank);
      if (next(rank) == begun) {
        ++begun;
        if (!action.computes()) wake(rank_of(counterpart(action)));
      }
      if (waits_for(rank) >= 0) return;
    }
  }

  /// The rank that this one waits for at its current action, or -1.
  int waits_for(int rank) const {
    const Action& action = current(rank);
    if (action.kind == Kind::send_output || action.kind == Kind::send_gradient) {
      const Action receive = counterpart(action);
      const int receiver = rank_of(receive);
      return next(receiver) > places_.index(receive) ? -1 : receiver;
    }
    if (!action.computes()) return -1;
    const auto receive = places_.messages().received_by(action);
    if (!receive) return -1;
    const Action send = counterpart(*receive);
    const int sender = rank_of(send);
    return next(sender) >= places_.index(send) ? -1 : sender;
  }

  [[noreturn]] void refuse_cycle(int rank) const {
    // Each stuck rank waits for another stuck rank, so this many steps lead into the circle.
    for (std::size_t i = 0; i < next_.size(); ++i)
      rank = waits_for(rank);
    std::vector<int> cycle{rank};
    while ((rank = waits_for(rank)) != cycle.front())
      cycle.push_back(rank);
    std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
    constexpr std::size_t max_shown = 8;
    std::string text = fmt::format("deadlock: rank {}", cycle.front());
    std::vector<Position> shown;
    for (std::size_t i = 0; i < cycle.size(); ++i) {
      if (i == max_shown) {
        text += fmt::format(", and so on round {} ranks", cycle.size());
        break;
      }
      shown.push_back({cycle[i], next(cycle[i])});
      text += fmt::format("{} waits in {} for rank {}", i == 0 ? "" : ", which",
                          to_text(current(cycle[i])), waits_for(cycle[i]));
    }
    refuse(schedule_, text, shown);
  }

  const Schedule& schedule_;
  const ActionPlaces& places_;
  std::vector<int> next_;     ///< each rank's next action
  std::vector<int> begun_;    ///< number of each rank's actions that have begun
  std::vector<int> awake_{};  ///< ranks that may be able to go on
  std::vector<bool> listed_;  ///< true for the ranks in awake_
};

}  // namespace

void refuse(const Schedule& schedule, const std::string& sentence,
            const std::vector<Position>& places) {
  std::string text = sentence;
  for (const Position& place : places)
    text += row_of(schedule, place);
  fail(text, ErrorKind::usage);
}

ActionPlaces::ActionPlaces(const Schedule& schedule)
    : messages_(rank_of_stage(schedule)),
      micro_batches_(static_cast<std::size_t>(schedule.micro_batches)),
      indices_(static_cast<std::size_t>(schedule.stages) * micro_batches_ * action_kinds, -1) {
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      const Position place{static_cast<int>(rank), static_cast<int>(i)};
      int& index = indices_[slot(action)];
      if (index >= 0)
        refuse(schedule, fmt::format("{} is there twice", to_text(action)),
               {{place.rank, index}, place});
      index = place.index;
    }
}

std::size_t ActionPlaces::slot(const Action& action) const {
  const auto stage = static_cast<std::size_t>(action.stage);
  const auto batch = static_cast<std::size_t>(action.micro_batch);
  return (stage * micro_batches_ + batch) * action_kinds + static_cast<std::size_t>(action.kind);
}

void check_rendezvous(const Schedule& schedule, const ActionPlaces& places) {
  Rendezvous(schedule, places).run();
}

}  // namespace sluice
