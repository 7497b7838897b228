#include "parallel/pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

using Kind = Action::Kind;
using Actions = std::vector<Action>;

void check_number(std::string_view what, int number, int most) {
  if (number < 1 || number > most)
    fail(fmt::format("a pipeline has 1 to {} {}, not {}", most, what, number), ErrorKind::usage);
}

/// The parameters of a schedule.
struct ScheduleShape {
  int ranks;
  int virtual_stages;
  int micro_batches;
};

ScheduleShape checked(const ScheduleShape& shape) {
  check_number("ranks", shape.ranks, max_ranks);
  check_number("virtual stages a rank", shape.virtual_stages, max_stages / shape.ranks);
  check_number("micro-batches", shape.micro_batches, max_micro_batches);
  const int stages = shape.ranks * shape.virtual_stages;
  if (stages > max_forwards / shape.micro_batches)
    fail(fmt::format("a schedule has {} forwards at most, not {} stages times {} micro-batches",
                     max_forwards, stages, shape.micro_batches),
         ErrorKind::usage);
  return shape;
}

/// Returns one rank's forwards or backwards: a group of micro-batches through each of its stages,
/// then the next group. Backwards begin with the rank's last stage, but also with the first
/// micro-batch. All groups are full: the last may run past the end.
Actions in_groups(Kind kind, int rank, const ScheduleShape& shape) {
  Actions actions;
  for (int begin = 0; begin < shape.micro_batches; begin += shape.ranks)
    for (int i = 0; i < shape.virtual_stages; ++i) {
      const int chunk = kind == Kind::forward ? i : shape.virtual_stages - 1 - i;
      for (int j = 0; j < shape.ranks; ++j)
        actions.push_back({kind, chunk * shape.ranks + rank, begin + j});
    }
  return actions;
}

/// Makes the schedule in which a rank does `warm_up(rank)` forwards, then one forward and one
/// backward in turn, then the remaining backwards.
///
/// Groups are made full, and then the surplus micro-batches are left out. In a smaller group a rank
/// would wait, with too few actions in between, for data that it sent round all ranks: a deadlock.
/// Leaving out actions cannot make a schedule deadlock.
template <typename WarmUp>
Schedule in_turn(const ScheduleShape& shape, WarmUp warm_up) {
  Schedule schedule{.stages = shape.ranks * shape.virtual_stages,
                    .micro_batches = shape.micro_batches};
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const Actions forwards = in_groups(Kind::forward, rank, shape);
    const Actions backwards = in_groups(Kind::backward, rank, shape);
    const auto ahead = std::min(static_cast<std::size_t>(warm_up(rank)), forwards.size());
    Actions& actions = schedule.ranks.emplace_back();
    const auto add = [&](const Action& action) {
      if (action.micro_batch < shape.micro_batches) actions.push_back(action);
    };
    for (std::size_t i = 0; i < forwards.size() + ahead; ++i) {
      if (i < forwards.size()) add(forwards[i]);
      if (i >= ahead) add(backwards[i - ahead]);
    }
  }
  return schedule;
}

}  // namespace

Schedule layer_split(int ranks, int micro_batches) {
  return in_turn(checked({ranks, 1, micro_batches}), [](int) { return 0; });
}

Schedule gpipe(int ranks, int micro_batches) {
  return in_turn(checked({ranks, 1, micro_batches}), [](int) { return max_micro_batches; });
}

Schedule one_forward_one_backward(int ranks, int micro_batches) {
  return in_turn(checked({ranks, 1, micro_batches}), [=](int rank) { return ranks - 1 - rank; });
}

Schedule interleaved(int ranks, int virtual_stages, int micro_batches) {
  const ScheduleShape shape = checked({ranks, virtual_stages, micro_batches});
  if (virtual_stages == 1) return one_forward_one_backward(ranks, micro_batches);
  // Before its first backward a rank needs the first group's forwards at all its stages but the
  // last. A rank is also two actions ahead of the next, since the next rank's forward and backward
  // both take a turn.
  return in_turn(shape,
                 [=](int rank) { return (virtual_stages - 1) * ranks + 2 * (ranks - 1 - rank); });
}

Schedule zero_bubble_h1(int ranks, int micro_batches) {
  Schedule schedule = one_forward_one_backward(ranks, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    Actions split;
    int next = 0;  // whose weight gradients come next
    const auto add_weight_gradients = [&](int until) {
      for (; next < until; ++next)
        split.push_back({Kind::weight_gradients, rank, next});
    };
    for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
      split.push_back(action);
      if (action.kind == Kind::backward) add_weight_gradients(action.micro_batch + 1 - rank);
    }
    add_weight_gradients(micro_batches);
    schedule.ranks[static_cast<std::size_t>(rank)] = std::move(split);
  }
  return schedule;
}

Schedule layer_major(int stages, int micro_batches) {
  checked({1, stages, micro_batches});
  Schedule schedule{.stages = stages, .micro_batches = micro_batches, .ranks = {{}}};
  for (const Kind kind : {Kind::forward, Kind::backward})
    for (int i = 0; i < stages; ++i)
      for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch)
        schedule.ranks[0].push_back(
            {kind, kind == Kind::forward ? i : stages - 1 - i, micro_batch});
  return schedule;
}

Schedule make_schedule(ScheduleName name, int ranks, int virtual_stages, int micro_batches) {
  switch (name) {
    case ScheduleName::gpipe:
      return gpipe(ranks, micro_batches);
    case ScheduleName::interleaved:
      return interleaved(ranks, virtual_stages, micro_batches);
    case ScheduleName::layer_split:
      return layer_split(ranks, micro_batches);
    case ScheduleName::zero_bubble_h1:
      return zero_bubble_h1(ranks, micro_batches);
    case ScheduleName::layer_major:
      check(ranks == 1, "a layer-major schedule has one rank");
      return layer_major(virtual_stages, micro_batches);
    case ScheduleName::one_forward_one_backward:
      break;
  }
  return one_forward_one_backward(ranks, micro_batches);
}

std::vector<int> rank_of_stage(const Schedule& schedule) {
  std::vector<int> ranks(static_cast<std::size_t>(std::max(schedule.stages, 0)), -1);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    for (const Action& action : schedule.ranks[rank]) {
      if (action.stage < 0 || action.stage >= schedule.stages) continue;
      int& found = ranks[static_cast<std::size_t>(action.stage)];
      if (found < 0) found = static_cast<int>(rank);
    }
  return ranks;
}

std::string_view span_name(Kind kind) {
  if (kind == Kind::weight_gradients) return "weight gradient";
  return kind == Kind::forward ? "forward" : "backward";
}

bool has_messages(const Schedule& schedule) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [](const Actions& actions) {
    return !std::all_of(actions.begin(), actions.end(), [](auto& a) { return a.computes(); });
  });
}

bool splits_backward(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const Actions& actions) {
    return std::ranges::find(actions, Kind::weight_gradients, &Action::kind) != actions.end();
  });
}

Schedule lower(const Schedule& computing) {
  if (has_messages(computing))
    fail("a schedule that sends and receives is lowered already", ErrorKind::usage);
  const Messages messages(rank_of_stage(computing));
  const auto inside = [&](const Action& action) {
    return action.stage >= 0 && action.stage < computing.stages;
  };
  Schedule lowered{.stages = computing.stages, .micro_batches = computing.micro_batches};
  for (const auto& actions : computing.ranks) {
    auto& row = lowered.ranks.emplace_back();
    const auto receive_for = [&](std::size_t i) {
      if (i >= actions.size() || !inside(actions[i])) return;
      if (const auto receive = messages.received_by(actions[i])) row.push_back(*receive);
    };
    receive_for(0);
    receive_for(1);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      row.push_back(actions[i]);
      receive_for(i + 2);  // before the send, which may wait for the other rank to send
      if (!inside(actions[i])) continue;  // validate() reports it
      if (const auto send = messages.sent_by(actions[i])) row.push_back(*send);
    }
  }
  return lowered;
}

bool Messages::apart(int stage, int neighbour) const {
  const int stages = static_cast<int>(ranks_.size());
  if (neighbour < 0 || neighbour >= stages) return false;
  return rank_of(neighbour) >= 0 && rank_of(neighbour) != rank_of(stage);
}

std::optional<Action> Messages::producer(const Action& computing) const {
  if (computing.kind == Kind::weight_gradients)
    return Action{Kind::backward, computing.stage, computing.micro_batch};
  const int stages = static_cast<int>(ranks_.size());
  const int stage = computing.stage + (computing.kind == Kind::forward ? -1 : 1);
  if (stage < 0 || stage >= stages) return std::nullopt;
  return Action{computing.kind, stage, computing.micro_batch};
}

std::optional<Action> Messages::received_by(const Action& computing) const {
  if (computing.kind == Kind::weight_gradients) return std::nullopt;
  const bool forward = computing.kind == Kind::forward;
  if (!apart(computing.stage, computing.stage + (forward ? -1 : 1))) return std::nullopt;
  return Action{forward ? Kind::receive_input : Kind::receive_gradient, computing.stage,
                computing.micro_batch};
}

std::optional<Action> Messages::sent_by(const Action& computing) const {
  if (computing.kind == Kind::weight_gradients) return std::nullopt;
  const bool forward = computing.kind == Kind::forward;
  if (!apart(computing.stage, computing.stage + (forward ? 1 : -1))) return std::nullopt;
  return Action{forward ? Kind::send_output : Kind::send_gradient, computing.stage,
                computing.micro_batch};
}

Action counterpart(const Action& message) {
  Action other = message;
  switch (message.kind) {
    case Kind::send_output:
      other.kind = Kind::receive_input;
      ++other.stage;
      break;
    case Kind::receive_input:
      other.kind = Kind::send_output;
      --other.stage;
      break;
    case Kind::send_gradient:
      other.kind = Kind::receive_gradient;
      --other.stage;
      break;
    case Kind::receive_gradient:
      other.kind = Kind::send_gradient;
      ++other.stage;
      break;
    case Kind::forward:
    case Kind::backward:
    case Kind::weight_gradients:
      break;
  }
  return other;
}

Action computing_of(const Action& message) {
  const bool forward = message.kind == Kind::send_output || message.kind == Kind::receive_input;
  return {forward ? Kind::forward : Kind::backward, message.stage, message.micro_batch};
}

}  // namespace sluice
