#include "parallel/pipeline/receive_turns.h"

#include <deque>

#include "parallel/pipeline/rendezvous.h"
#include "parallel/pipeline/validator.h"
#include "tests/parallel/pipeline/all_schedules.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"

// Ranks whose GPUs run one message or tensor-parallel sum at a time come to the end of a step, for
// every schedule, if they start receives in their turns.

namespace sluice::test::receive_turns_test {
namespace {

/// A step of a rank's program: an action of its row, or the start of a receive.
struct Item {
  Action action;
  bool starts_receive = false;  ///< otherwise a receive is only posted
};
using Program = std::vector<Item>;

Program program_of(const Schedule& lowered, int rank, bool in_turn) {
  const auto& row = lowered.ranks[static_cast<std::size_t>(rank)];
  const auto turns = receive_turns(lowered, rank);
  Program program;
  auto turn = turns.begin();
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (; in_turn && turn != turns.end() && turn->before == i; ++turn)
      program.push_back({turn->receive, true});
    program.push_back({row[i], !in_turn && !row[i].computes()});
  }
  return program;
}

/// Copies of each rank of a pipeline that add up at every computing action. Each has a lane, whose
/// first operation alone can take place: a message when it is the first on both sides, a sum when
/// it is the first on all copies of the rank.
class Mesh {
 public:
  Mesh(const Schedule& lowered, int copies, bool in_turn)
      : places_(lowered), copies_(copies), seats_(lowered.ranks.size() * slots(copies)) {
    for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank)
      for (std::size_t copy = 0; copy < slots(copies); ++copy)
        at(rank, copy).program = program_of(lowered, static_cast<int>(rank), in_turn);
  }

  /// Runs until nothing can happen any more. Returns true if all is done.
  bool run() {
    bool again = true;
    while (again) {
      again = false;
      for (std::size_t seat = 0; seat < seats_.size(); ++seat)
        again = start_next(seats_[seat]) || finish_first(seat) || again;
    }
    return std::ranges::all_of(seats_, [](const Seat& seat) {
      return seat.next == seat.program.size() && seat.lane.empty();
    });
  }

 private:
  /// A rank of the job.
  struct Seat {
    Program program{};
    std::size_t next = 0;
    std::deque<Action> lane{};
    std::vector<Action> arrived{};
  };
  static std::size_t slots(int copies) { return static_cast<std::size_t>(copies); }
  Seat& at(std::size_t rank, std::size_t copy) { return seats_[rank * slots(copies_) + copy]; }

  bool start_next(Seat& seat) {
    if (seat.next == seat.program.size()) return false;
    if (!seat.lane.empty() && seat.lane.back().computes()) return false;  // it waits for a sum
    const auto& [action, starts_receive] = seat.program[seat.next];
    if (action.computes()) {
      const auto receive = places_.messages().received_by(action);
      if (receive && std::ranges::find(seat.arrived, *receive) == seat.arrived.end()) return false;
      if (copies_ > 1) seat.lane.push_back(action);
    } else if (starts_receive || action.kind == Action::Kind::send_output ||
               action.kind == Action::Kind::send_gradient) {
      seat.lane.push_back(action);
    }
    ++seat.next;
    return true;
  }

  bool finish_first(std::size_t number) {
    Seat& seat = seats_[number];
    if (seat.lane.empty()) return false;
    const Action action = seat.lane.front();
    const std::size_t rank = number / slots(copies_), copy = number % slots(copies_);
    std::vector<Seat*> all;
    if (action.computes()) {
      for (std::size_t other = 0; other < slots(copies_); ++other)
        all.push_back(&at(rank, other));
    } else {
      const Action other = counterpart(action);
      all.push_back(&seat);
      all.push_back(&at(static_cast<std::size_t>(places_.messages().rank_of(other.stage)), copy));
      if (all[1]->lane.empty() || all[1]->lane.front() != other) return false;
    }
    if (action.computes())
      for (const Seat* one : all)
        if (one->lane.empty() || one->lane.front() != action) return false;
    for (Seat* one : all) {
      one->arrived.push_back(one->lane.front());
      one->lane.pop_front();
    }
    return true;
  }

  const ActionPlaces places_;
  int copies_;
  std::vector<Seat> seats_;
};

std::string shown(const std::vector<ReceiveTurn>& turns) {
  std::string text;
  for (const auto& [before, receive] : turns)
    text += to_text(receive) + "@" + std::to_string(before) + " ";
  return text;
}

TEST_CASE("a receive has its turn after the sends for which its sender waits", "[pipeline]") {
  const Schedule lowered = lower(one_forward_one_backward(2, 2));
  REQUIRE(rows_of(lowered) ==
          "0F0,0RECV_B0,0SEND_F0,0F1,0RECV_B1,0SEND_F1,0B0,0B1|"
          "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1|");
  CHECK(shown(receive_turns(lowered, 0)) == "0RECV_B0@6 0RECV_B1@7 ");
  CHECK(shown(receive_turns(lowered, 1)) == "1RECV_F0@1 1RECV_F1@3 ");
}

TEST_CASE("one message at a time comes to the end of every schedule", "[pipeline]") {
  int hangs = 0, hangs_as_posted = 0, runs = 0;
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const int micro_batches : {1, 2, 3, 4, 8, 13})
      for (const auto& [name, schedule] : all_schedules(ranks, micro_batches)) {
        const Schedule lowered = lower(schedule);
        for (const int copies : {1, 2}) {
          INFO(name << " of " << ranks << " ranks, " << micro_batches << " micro-batches, "
                    << copies << " copies");
          ++runs;
          const bool ends = Mesh(lowered, copies, true).run();
          CHECK(ends);
          if (!ends) ++hangs;
          if (!Mesh(lowered, copies, false).run()) ++hangs_as_posted;
        }
      }
  CHECK(hangs == 0);
  CHECK(runs == (5 * 8 + 1) * 6 * 2);
  CHECK(hangs_as_posted > runs / 4);  // so it is the turns that help
}

TEST_CASE("a receive that is posted long before also waits for its turn", "[pipeline]") {
  const Schedule early = schedule_from_csv(
      "0RECV_B0,0RECV_B1,0F0,0SEND_F0,0F1,0SEND_F1,0B0,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  validate(early);
  CHECK(Mesh(early, 2, true).run());
  CHECK_FALSE(Mesh(early, 2, false).run());
}

TEST_CASE("every receive has one turn, between its posting and its use", "[pipeline]") {
  for (const auto& [name, schedule] : all_schedules(4, 9)) {
    INFO(name);
    const Schedule lowered = lower(schedule);
    const ActionPlaces places(lowered);
    for (int rank = 0; rank < 4; ++rank) {
      const auto& row = lowered.ranks[static_cast<std::size_t>(rank)];
      const auto posted = std::ranges::count_if(row, [](const Action& action) {
        return action.kind == Action::Kind::receive_input ||
               action.kind == Action::Kind::receive_gradient;
      });
      const auto turns = receive_turns(lowered, rank);
      CHECK(std::ssize(turns) == posted);
      CHECK(std::ranges::is_sorted(turns, {}, &ReceiveTurn::before));
      for (const auto& [before, receive] : turns) {
        CHECK(static_cast<int>(before) > places.index(receive));
        CHECK(static_cast<int>(before) <= places.index(computing_of(receive)));
      }
    }
  }
}

TEST_CASE("forwards alone come to their end", "[pipeline]") {
  for (const int ranks : {2, 4}) {
    Schedule forwards{.stages = ranks, .micro_batches = 6};
    forwards.ranks.resize(static_cast<std::size_t>(ranks));
    for (int m = 0; m < 6; ++m)
      for (int stage = 0; stage < ranks; ++stage)
        forwards.ranks[static_cast<std::size_t>(stage)].push_back(
            {Action::Kind::forward, stage, m});
    CHECK(Mesh(lower(forwards), 2, true).run());
  }
}

TEST_CASE("a schedule that deadlocks has no turns", "[pipeline]") {
  const Schedule stuck = schedule_from_csv(
      "0F0,0SEND_F0,0RECV_B0,0B0\n"
      "1F0,1B0,1RECV_F0,1SEND_B0\n");
  CHECK(error_message([&] { receive_turns(stuck, 0); }) ==
        "a schedule that deadlocks has no order");
}

}  // namespace
}  // namespace sluice::test::receive_turns_test
