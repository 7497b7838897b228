#include "parallel/pipeline/validator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "kernels/base/error.h"
#include "parallel/pipeline/rendezvous.h"
#include "parallel/pipeline/schedule_text.h"

namespace sluice {
namespace {

using Kind = Action::Kind;

class Validator {
 public:
  explicit Validator(const Schedule& schedule) : schedule_(schedule) {}

  ScheduleFacts validate(std::optional<int> max_live) {
    check_ranges();
    check_stages();
    check_counts();
    const ActionPlaces places(schedule_);
    check_ranks(places);
    const ScheduleFacts facts = count(max_live, places.messages());
    check_rendezvous(schedule_, places);
    check_message_order(places);
    return facts;
  }

 private:
  /// Calls `visit(rank, index, action)` for all actions, rank by rank.
  template <typename Visit>
  void for_all(Visit visit) const {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank)
      for (std::size_t i = 0; i < schedule_.ranks[rank].size(); ++i)
        visit(static_cast<int>(rank), static_cast<int>(i), schedule_.ranks[rank][i]);
  }

  void check_ranges() const;
  void check_stages() const;
  void check_counts() const;
  void check_ranks(const ActionPlaces& places) const;
  void check_computing(const ActionPlaces& places, int rank, int index) const;
  void check_message(const ActionPlaces& places, int rank, int index) const;
  void check_message_order(const ActionPlaces& places) const;
  ScheduleFacts count(std::optional<int> max_live, const Messages& messages) const;
  [[noreturn]] void refuse_counts(Kind kind, int stage) const;

  const Schedule& schedule_;
};

void Validator::check_ranges() const {
  if (schedule_.stages < 1 || schedule_.micro_batches < 1)
    refuse(schedule_, fmt::format("a schedule of {} stages and {} micro-batches does nothing",
                                  schedule_.stages, schedule_.micro_batches));
  for_all([&](int rank, int index, const Action& action) {
    if (action.stage < 0 || action.stage >= schedule_.stages)
      refuse(
          schedule_,
          fmt::format("there is no stage {}: the schedule has {}", action.stage, schedule_.stages),
          {{rank, index}});
    if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches)
      refuse(schedule_,
             fmt::format("there is no micro-batch {}: the schedule has {}", action.micro_batch,
                         schedule_.micro_batches),
             {{rank, index}});
  });
}

void Validator::check_stages() const {
  // If there are more stages than actions, one of the first (actions + 1) stages has none, so
  // checking these is enough.
  std::size_t actions = 0;
  for (const auto& row : schedule_.ranks)
    actions += row.size();
  std::vector<Position> first(std::min(static_cast<std::size_t>(schedule_.stages), actions + 1),
                              Position{-1, -1});
  for_all([&](int rank, int index, const Action& action) {
    const auto stage = static_cast<std::size_t>(action.stage);
    if (stage >= first.size()) return;
    if (first[stage].rank < 0)
      first[stage] = {rank, index};
    else if (first[stage].rank != rank)
      refuse(schedule_,
             fmt::format("stage {} is on rank {} and on rank {}", stage, first[stage].rank, rank),
             {first[stage], {rank, index}});
  });
  for (std::size_t stage = 0; stage < first.size(); ++stage)
    if (first[stage].rank < 0) refuse(schedule_, fmt::format("stage {} is on no rank", stage));
  for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank)
    if (schedule_.ranks[rank].empty()) refuse(schedule_, fmt::format("rank {} has no stage", rank));
}

/// Checks the numbers of actions that compute, before a table is made for them.
void Validator::check_counts() const {
  std::vector<Kind> kinds{Kind::forward, Kind::backward};
  if (splits_backward(schedule_)) kinds.push_back(Kind::weight_gradients);
  for (const Kind kind : kinds) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(schedule_.stages));
    for_all([&](int, int, const Action& action) {
      if (action.kind == kind) ++counts[static_cast<std::size_t>(action.stage)];
    });
    for (int stage = 0; stage < schedule_.stages; ++stage)
      if (counts[static_cast<std::size_t>(stage)] != schedule_.micro_batches)
        refuse_counts(kind, stage);
  }
}

void Validator::refuse_counts(Kind kind, int stage) const {
  std::vector<Position> found;  // by micro-batch, up to the highest found
  Position other{-1, -1};
  for_all([&](int rank, int index, const Action& action) {
    if (action.stage != stage) return;
    other = {rank, index};
    if (action.kind != kind) return;
    const auto batch = static_cast<std::size_t>(action.micro_batch);
    if (batch >= found.size()) found.resize(batch + 1, Position{-1, -1});
    if (found[batch].rank >= 0)
      refuse(schedule_, fmt::format("{} is there twice", to_text(action)),
             {found[batch], {rank, index}});
    found[batch] = {rank, index};
  });
  const auto gap = std::find_if(found.begin(), found.end(),
                                [](const Position& place) { return place.rank < 0; });
  const Action missing{kind, stage, static_cast<int>(gap - found.begin())};
  for_all([&](int rank, int index, const Action& action) {  // its other action shows the place
    if (action.stage == stage && action.micro_batch == missing.micro_batch) other = {rank, index};
  });
  refuse(schedule_, fmt::format("{} is missing on rank {}", to_text(missing), other.rank), {other});
}

/// Checks each rank's row by itself.
void Validator::check_ranks(const ActionPlaces& places) const {
  using Last = std::vector<int>;
  const Last none(static_cast<std::size_t>(schedule_.stages), -1);
  std::map<Kind, Last> last{{Kind::backward, none}, {Kind::weight_gradients, none}};
  for_all([&](int rank, int index, const Action& action) {
    if (!action.computes()) {
      check_message(places, rank, index);
      return;
    }
    check_computing(places, rank, index);
    if (action.kind == Kind::forward) return;
    int& before = last.at(action.kind)[static_cast<std::size_t>(action.stage)];
    if (action.micro_batch < before)
      refuse(schedule_,
             fmt::format("{} comes after {}: gradients are added in ascending order of the "
                         "micro-batches",
                         to_text(action), to_text({action.kind, action.stage, before})),
             {{rank, index}});
    before = action.micro_batch;
  });
}

void Validator::check_computing(const ActionPlaces& places, int rank, int index) const {
  const Position place{rank, index};
  const Action& action = place.in(schedule_);
  const Messages& messages = places.messages();
  const auto after = [&](const Action& needed) {
    if (places.index(needed) > index)
      refuse(schedule_,
             fmt::format("{} comes before {}, which it needs", to_text(action), to_text(needed)),
             {place, {rank, places.index(needed)}});
  };
  if (action.kind == Kind::backward) after({Kind::forward, action.stage, action.micro_batch});
  const auto producer = messages.producer(action);
  if (producer && messages.rank_of(producer->stage) == rank) after(*producer);
  if (const auto receive = messages.received_by(action)) {
    const int at = places.index(*receive);
    if (at < 0)
      refuse(schedule_,
             fmt::format("{} is missing: {} needs it from rank {}", to_text(*receive),
                         to_text(action), messages.rank_of(producer->stage)),
             {place});
    if (at > index)
      refuse(schedule_, fmt::format("{} is too late for {}", to_text(*receive), to_text(action)),
             {place, {rank, at}});
  }
  if (const auto send = messages.sent_by(action)) {
    const int at = places.index(*send);
    if (at < 0)
      refuse(schedule_,
             fmt::format("{} is missing: rank {} needs what {} computes", to_text(*send),
                         messages.rank_of(counterpart(*send).stage), to_text(action)),
             {place});
    if (at < index)
      refuse(schedule_,
             fmt::format("{} comes before {}, which computes it", to_text(*send), to_text(action)),
             {{rank, at}, place});
  }
}

/// Checks that an action needs the message. Where the message is, and that it is there, is checked
/// with that action.
void Validator::check_message(const ActionPlaces& places, int rank, int index) const {
  const Position place{rank, index};
  const Action& action = place.in(schedule_);
  const Action computing = computing_of(action);
  if (action == places.messages().received_by(computing)) return;
  if (action == places.messages().sent_by(computing)) return;
  refuse(schedule_,
         fmt::format("{} has no other side: no stage on another rank has a part in it",
                     to_text(action)),
         {place});
}

/// Checks that messages between two stages arrive in the order in which they are sent. Otherwise a
/// receiver would take one message for another.
void Validator::check_message_order(const ActionPlaces& places) const {
  using Last = std::vector<int>;
  const Last none(static_cast<std::size_t>(schedule_.stages), -1);
  std::array<Last, 2> last{none, none};  // for inputs and gradients: index of the last send
  for_all([&](int rank, int index, const Action& action) {
    if (action.kind != Kind::receive_input && action.kind != Kind::receive_gradient) return;
    const Action send = counterpart(action);
    const int sender = places.messages().rank_of(send.stage);
    const std::size_t direction = action.kind == Kind::receive_input ? 0 : 1;
    int& before = last[direction][static_cast<std::size_t>(action.stage)];
    const int at = places.index(send);
    if (at < before)
      refuse(
          schedule_,
          fmt::format("rank {} posts {} after the receive of {}, but rank {} sends it first", rank,
                      to_text(action), to_text(Position{sender, before}.in(schedule_)), sender),
          {{rank, index}, {sender, at}});
    before = at;
  });
}

ScheduleFacts Validator::count(std::optional<int> max_live, const Messages& messages) const {
  const std::vector<int> zeros(schedule_.ranks.size());
  ScheduleFacts facts{.live = zeros, .inputs = zeros, .received = zeros};
  std::vector<int> live = zeros, inputs = zeros, received = zeros;
  const Kind releases = splits_backward(schedule_) ? Kind::weight_gradients : Kind::backward;
  for_all([&](int rank, int index, const Action& action) {
    const auto r = static_cast<std::size_t>(rank);
    if (action.kind == Kind::receive_input || action.kind == Kind::receive_gradient) ++received[r];
    if (action.computes() && messages.received_by(action)) --received[r];
    if (action.kind == Kind::forward) ++live[r], ++inputs[r];
    if (action.kind == Kind::backward) --inputs[r];
    if (action.kind == releases) --live[r];
    if (max_live && live[r] > *max_live)
      refuse(schedule_,
             fmt::format("rank {} holds more than {} micro-batches for backward", rank, *max_live),
             {{rank, index}});
    facts.live[r] = std::max(facts.live[r], live[r]);
    facts.inputs[r] = std::max(facts.inputs[r], inputs[r]);
    facts.received[r] = std::max(facts.received[r], received[r]);
  });
  return facts;
}

}  // namespace

ScheduleFacts validate(const Schedule& lowered, std::optional<int> max_live) {
  return Validator(lowered).validate(max_live);
}

}  // namespace sluice
