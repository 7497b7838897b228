#include "parallel/flight_recorder/post_mortem.h"

#include <string>
#include <vector>

#include "parallel/flight_recorder/rank_report.h"
#include "tests/support/catch.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::post_mortem_test {
namespace {

using Records = std::vector<RankRecord>;

Signature call(Collective kind, std::string_view label, std::uint64_t sequence) {
  Signature signature{.sequence = sequence, .count = 1000, .kind = kind, .dtype = DType::f32};
  signature.set_label(label);
  return signature;
}

/// A rank's record, written by hand: operations one after another, a millisecond each.
class Rank {
 public:
  explicit Rank(int rank, int size = 4) {
    record_.rank = rank;
    record_.size = size;
    record_.id.pid = 4710 + rank;
    record_.process = ProcessState::running;
  }
  Rank& done(const std::string& communicator, const Signature& signature) {
    in(communicator, signature);
    record_.operations.back().end = time_;
    return *this;
  }
  Rank& in(const std::string& communicator, const Signature& signature) {
    record_.operations.push_back({.number = record_.operations.size(),
                                  .communicator = communicator,
                                  .signature = signature,
                                  .begin = time_ += 1'000'000});
    return *this;
  }
  Rank& at(std::string note) {
    record_.note = std::move(note);
    return *this;
  }
  Rank& process(ProcessState state) {
    record_.process = state;
    return *this;
  }
  Rank& finished() {
    record_.outcome = RankRecord::Outcome::finished;
    return process(ProcessState::gone);
  }
  Rank& failed(std::string message, std::int64_t when) {
    record_.outcome = RankRecord::Outcome::failed;
    record_.message = std::move(message);
    record_.ended = when;
    return process(ProcessState::gone);
  }
  /// As after the first operations of a longer run.
  Rank& wrapped() {
    for (auto& operation : record_.operations)
      operation.number += 1000;
    return *this;
  }
  operator RankRecord() const { return record_; }

 private:
  RankRecord record_;
  std::int64_t time_ = 1'000'000;
};

const Signature gradients_2 = call(Collective::all_reduce, "gradients 2", 41);
const Signature gradients_3 = call(Collective::all_reduce, "gradients 3", 42);

/// All have done operation 41 of world and are in 42.
Rank waiting(int rank) {
  return Rank(rank).done("world", gradients_2).in("world", gradients_3);
}

}  // namespace

TEST_CASE("post mortem: a rank is gone in an operation", "[post_mortem]") {
  const Records records{waiting(0), waiting(1).process(ProcessState::gone), waiting(2), waiting(3)};
  CHECK(post_mortem(records, 4) ==
        "rank 1 (pid 4711) was killed or exited without a word in all_reduce 'gradients 3' "
        "(operation 42 of world); ranks 0, 2, 3 wait for it");
}

TEST_CASE("post mortem: a rank is gone between operations", "[post_mortem]") {
  const Records records{
      waiting(0), Rank(1).done("world", gradients_2).at("step 12").process(ProcessState::gone),
      waiting(2), Rank(3).done("world", gradients_2)};
  CHECK(post_mortem(records, 4) ==
        "rank 1 (pid 4711) was killed or exited without a word after all_reduce 'gradients 2' "
        "(operation 41 of world), at \"step 12\"; ranks 0, 2 wait for it in all_reduce "
        "'gradients 3' (operation 42 of world)");
}

TEST_CASE("post mortem: two ranks are gone, one before its first operation", "[post_mortem]") {
  const Records records{waiting(0), Rank(1).process(ProcessState::gone),
                        waiting(2).process(ProcessState::gone), Rank(3)};
  CHECK(post_mortem(records, 4) ==
        "ranks 1, 2 were killed or exited without a word (rank 1 before its first operation, rank "
        "2 in all_reduce 'gradients 3' (operation 42 of world)); rank 0 waits for them in "
        "all_reduce 'gradients 3' (operation 42 of world)");
}

TEST_CASE("post mortem: the only rank that did not end well is gone", "[post_mortem]") {
  const Records records{Rank(0).finished(), Rank(1).at("saving").process(ProcessState::gone)};
  CHECK(post_mortem(records, 2) ==
        "rank 1 (pid 4711) was killed or exited without a word before its first operation, at "
        "\"saving\"");
}

TEST_CASE("post mortem: a rank is stopped", "[post_mortem]") {
  const Records records{waiting(0), waiting(1), waiting(2).process(ProcessState::stopped),
                        waiting(3)};
  CHECK(post_mortem(records, 4) ==
        "rank 2 (pid 4712) is stopped, by a signal or a debugger, in all_reduce 'gradients 3' "
        "(operation 42 of world); ranks 0, 1, 3 wait for it");
}

TEST_CASE("post mortem: one rank called another operation", "[post_mortem]") {
  const Signature other = call(Collective::all_gather, "parameters", 42);
  const Records records{waiting(0), waiting(1),
                        Rank(2).done("world", gradients_2).in("world", other), waiting(3)};
  const std::string expected =
      "rank 2 called all_gather of 1000 f32 'parameters' as operation 42 of world, where ranks 0, "
      "1, 3 called all_reduce of 1000 f32 'gradients 3'";
  CHECK(post_mortem(records, 4) == expected);
  SECTION("which came to an end there") {
    Rank ended(2);
    ended.done("world", gradients_2).done("world", other);
    CHECK(post_mortem({waiting(0), waiting(1), ended, waiting(3)}, 4) == expected);
  }
  SECTION("and the job was killed for it") {
    Records killed = records;
    for (RankRecord& record : killed)
      record.process = ProcessState::gone;
    CHECK(post_mortem(killed, 4) == expected);
  }
  SECTION("and died of it") {
    Records died = records;
    died[2].process = ProcessState::gone;
    CHECK(post_mortem(died, 4) == expected);
  }
}

TEST_CASE("post mortem: two ranks disagree", "[post_mortem]") {
  Signature shorter = gradients_3;
  shorter.count = 999;
  CHECK(post_mortem({waiting(0), Rank(1).in("world", shorter)}, 2) ==
        "the ranks disagree on operation 42 of world: rank 0 called all_reduce of 1000 f32 "
        "'gradients 3', but rank 1 called all_reduce of 999 f32 'gradients 3'");
}

TEST_CASE("post mortem: of several disagreements the first counts", "[post_mortem]") {
  // Once out of step, all that follows differs too, in whatever order the names sort.
  const auto rank = [](int number, std::string_view early, std::string_view late) {
    return Rank(number)
        .in("world", call(Collective::all_reduce, early, 9))
        .in("dp 0", call(Collective::all_reduce, late, 3));
  };
  CHECK_THAT(post_mortem({rank(0, "a", "x"), rank(1, "a", "x"), rank(2, "b", "y")}, 3),
             Contains("rank 2 called all_reduce of 1000 f32 'b' as operation 9 of world"));
}

TEST_CASE("post mortem: ranks may differ in what they send each other", "[post_mortem]") {
  Signature one = call(Collective::p2p, "send 1", 3), two = call(Collective::p2p, "receive 1", 3);
  one.root = 1;
  two.count = 5;
  const Records records{Rank(0).in("pp", one), Rank(1).in("pp", two)};
  CHECK(post_mortem(records, 2) ==
        "no rank is behind the others: rank 0 is in p2p 'send 1' (operation 3 of pp)");
  Signature barrier = call(Collective::barrier, "", 3);
  CHECK_THAT(
      post_mortem({Rank(0).in("pp", one), Rank(1).in("pp", barrier)}, 2),
      Contains(
          "rank 0 (pid 4710) has not started barrier (operation 3 of pp), which rank 1 waits in; "
          "it has finished no operation and is in p2p 'send 1'"));
}

TEST_CASE("post mortem: messages have the number of the collective that follows them",
          "[post_mortem]") {
  const Signature message = call(Collective::p2p, "checkpoint", 42);
  const auto after = [&](int rank) {
    return Rank(rank).done("world", gradients_2).done("world", message);
  };
  // They are not the collective, and a rank that has sent its own has not begun it.
  CHECK(post_mortem(Records{after(0).in("world", gradients_3), after(1).in("world", gradients_3),
                            after(2).in("world", gradients_3), after(3)},
                    4) ==
        "rank 3 (pid 4713) has not started all_reduce 'gradients 3' (operation 42 of world), which "
        "ranks 0-2 wait in; it last finished p2p 'checkpoint' (operation 42 of world)");
  CHECK(post_mortem(Records{after(0).done("world", gradients_3).finished(),
                            after(1).done("world", gradients_3).finished()},
                    2) == "all ranks ended well");
}

TEST_CASE("post mortem: a rank is behind", "[post_mortem]") {
  const std::string start =
      "rank 3 (pid 4713) has not started all_reduce 'gradients 3' (operation 42 of world), which "
      "ranks 0-2 wait in; it last finished all_reduce 'gradients 2' (operation 41 of world)";
  Rank late = Rank(3).done("world", gradients_2);
  Records records{waiting(0), waiting(1), waiting(2)};
  SECTION("and nothing is known of it") {
    records.push_back(late);
    CHECK(post_mortem(records, 4) == start);
  }
  SECTION("at its note") {
    records.push_back(late.at("step 12"));
    CHECK(post_mortem(records, 4) == start + " and is at \"step 12\"");
  }
  SECTION("in an operation of another communicator") {
    records.push_back(late.at("step 12").in("tp 1", call(Collective::broadcast, "x", 7)));
    CHECK(post_mortem(records, 4) == start + " and is in broadcast 'x' (operation 7 of tp 1)");
  }
  SECTION("since it has ended") {
    records.push_back(late.finished());
    CHECK(post_mortem(records, 4) == start + " and has ended");
  }
  SECTION("and the job was killed for it") {
    records.push_back(late.at("step 12"));
    for (RankRecord& record : records)
      record.process = ProcessState::gone;
    CHECK(post_mortem(records, 4) ==
          "ranks 0-3 were killed or exited without a word; " + start + " and was at \"step 12\"");
  }
  SECTION("and on another host") {
    records.push_back(late);
    for (RankRecord& record : records)
      record.process = ProcessState::unknown;
    CHECK(post_mortem(records, 4) == start);
  }
}

TEST_CASE("post mortem: a rank has not begun its first operation", "[post_mortem]") {
  CHECK(post_mortem({Rank(0).in("world", call(Collective::barrier, "", 0)), Rank(1).at("loading")},
                    2) ==
        "rank 1 (pid 4711) has not started barrier (operation 0 of world), which rank 0 waits in; "
        "it has finished no operation and is at \"loading\"");
}

TEST_CASE("post mortem: several ranks are behind", "[post_mortem]") {
  CHECK(post_mortem({waiting(0), Rank(1).done("world", gradients_2).at("step 12"),
                     Rank(2).done("world", gradients_2)},
                    3) ==
        "ranks 1, 2 have not started all_reduce 'gradients 3' (operation 42 of world), which rank "
        "0 waits in; rank 1 last finished all_reduce 'gradients 2' (operation 41 of world) and is "
        "at \"step 12\"; rank 2 last finished all_reduce 'gradients 2' (operation 41 of world)");
}

TEST_CASE("post mortem: who waits for a rank that waits itself is not the cause", "[post_mortem]") {
  // Rank 2 waits for 0 and 1 in world, and 1, since later, for 0 in their own group.
  const Signature before = call(Collective::barrier, "", 5);
  const Signature part = call(Collective::all_gather, "part", 6);
  const Records records{Rank(0).done("world", gradients_2).done("tp 0", before),
                        Rank(1).done("world", gradients_2).done("tp 0", before).in("tp 0", part),
                        waiting(2)};
  CHECK_THAT(post_mortem(records, 3), StartsWith("rank 0 (pid 4710) has not started"));
}

TEST_CASE("post mortem: ranks wait for each other in a circle", "[post_mortem]") {
  const Signature a = call(Collective::barrier, "a", 1), b = call(Collective::barrier, "b", 1);
  const Signature before = call(Collective::barrier, "", 0);
  const Records records{
      Rank(0).done("x", before).done("y", before).in("x", a),
      Rank(1).done("y", before).done("x", before).done("x", before).in("y", b),
  };
  CHECK(post_mortem(records, 2) ==
        "rank 1 (pid 4711) has not started barrier 'a' (operation 1 of x), which rank 0 waits in; "
        "it last finished barrier (operation 0 of x) and is in barrier 'b' (operation 1 of y); the "
        "ranks wait for each other in a circle");
}

TEST_CASE("post mortem: ranks of other groups are not blamed", "[post_mortem]") {
  // Two groups of two, each busy; rank 3 has used neither "dp 0" nor world in memory's reach.
  const Signature sum = call(Collective::all_reduce, "sum", 500);
  const Records records{Rank(0).in("dp 0", sum), Rank(1).in("dp 0", sum),
                        Rank(2).in("dp 1", sum).wrapped(), Rank(3).in("dp 1", sum).wrapped()};
  CHECK(post_mortem(records, 4) ==
        "no rank is behind the others: rank 0 is in all_reduce 'sum' (operation 500 of dp 0)");
  SECTION("nor when they wait for nothing") {
    CHECK_THAT(post_mortem({records[0], records[1], Rank(2).at("step 1")}, 3),
               Contains("no rank is behind"));
  }
  SECTION("nor for operations that they have forgotten") {
    Records world = records;
    world[0] = Rank(0).in("world", call(Collective::barrier, "", 2));
    world[1] = world[0];
    world[1].rank = 1;
    CHECK_THAT(post_mortem(world, 4), Contains("no rank is behind"));
  }
}

TEST_CASE("post mortem: a group's first operation lacks a rank", "[post_mortem]") {
  const Records records{Rank(0).in("dp 0", call(Collective::barrier, "", 0)),
                        Rank(1).at("loading")};
  CHECK_THAT(post_mortem(records, 2), Contains("rank 1 (pid 4711) has not started barrier "
                                               "(operation 0 of dp 0), which rank 0 waits in"));
}

TEST_CASE("post mortem: a rank reported its error", "[post_mortem]") {
  const Records records{
      waiting(0), waiting(1).process(ProcessState::gone),
      Rank(2).done("world", gradients_2).at("step 12").failed("out of memory", 50),
      waiting(3).failed("aborted by another rank", 60)};
  CHECK(post_mortem(records, 4) ==
        "rank 2 (pid 4712) ended with the error \"out of memory\" after all_reduce 'gradients 2' "
        "(operation 41 of world), at \"step 12\"; ranks 0, 1, 3 wait for it in all_reduce "
        "'gradients 3' (operation 42 of world)");
}

TEST_CASE("post mortem: a rank never came", "[post_mortem]") {
  CHECK(post_mortem({waiting(0), waiting(2)}, 4) ==
        "ranks 1, 3 of 4 never got as far as their first record; ranks 0, 2 wait for them in "
        "all_reduce 'gradients 3' (operation 42 of world)");
  CHECK(post_mortem({Rank(0)}, 2) == "rank 1 of 2 never got as far as its first record");
  CHECK(post_mortem({}, 4) == "no rank has left a record of what it did");
  // Records that are not of this job are not looked at.
  CHECK(post_mortem({Rank(0).finished(), Rank(7).process(ProcessState::gone)}, 1) ==
        "all ranks ended well");
}

TEST_CASE("post mortem: nobody is behind", "[post_mortem]") {
  CHECK(post_mortem({waiting(0), waiting(1)}, 2) ==
        "no rank is behind the others: rank 0 is in all_reduce 'gradients 3' (operation 42 of "
        "world)");
  CHECK(post_mortem(
            {waiting(0).process(ProcessState::gone), waiting(1).process(ProcessState::gone)}, 2) ==
        "ranks 0, 1 were killed or exited without a word, and none was behind the others: rank 0 "
        "was in all_reduce 'gradients 3' (operation 42 of world)");
}

TEST_CASE("post mortem: many waiting ranks are told as ranges", "[post_mortem]") {
  Records records{waiting(0).process(ProcessState::gone)};
  for (const int rank : {1, 3, 4, 6, 7, 8, 9})
    records.push_back(waiting(rank));
  for (const int rank : {2, 5})
    records.push_back(Rank(rank).done("world", gradients_3));
  CHECK_THAT(post_mortem(records, 10), Contains("; ranks 1, 3, 4, 6-9 wait for it"));
}

TEST_CASE("a report of operations says how each rank is", "[post_mortem]") {
  const auto state = [](const RankRecord& record) {
    const std::string report = rank_report({record}, "", true);
    const auto from = report.find("rank 0 of 1: pid");
    REQUIRE(from != std::string::npos);
    const std::string line = report.substr(from, report.find('\n', from) - from);
    return line.substr(line.find(", ") + 2);
  };
  const auto one = [] { return Rank(0, 1).in("world", gradients_3); };
  CHECK(state(one()) == "runs");
  CHECK(state(one().process(ProcessState::stopped)) == "is stopped");
  CHECK(state(one().process(ProcessState::gone)) == "is gone without a word");
  CHECK(state(one().process(ProcessState::unknown)) ==
        "is on another host or in another container");
  CHECK(state(one().finished()) == "ended well");
  CHECK(state(one().failed("no memory", 1)) == "ended with an error");
  CHECK(state(one().at("step 3")) == "runs, at \"step 3\"");
}

TEST_CASE("a report says what a rank said when the job ended", "[post_mortem]") {
  const Records records{waiting(0), waiting(1)};
  CHECK(rank_report(records, "", false) == post_mortem(records, 4) + "\n");
  CHECK(rank_report(records, "rank 1 has\x1b[2J gone", false) == "rank 1 has\\x1b[2J gone\n");
  CHECK_THAT(rank_report(records, "rank 1 has gone", true), Contains("\nrank 0 of 4: pid "));
}

TEST_CASE("the program post_mortem reads a folder", "[post_mortem]") {
  const test::TempDir folder;
  FlightRecorder first(folder.path(), 0, 2), second(folder.path(), 1, 2);
  first.begin("world", gradients_3);
  second.end(second.begin("world", gradients_2));
  const std::string sentence = test::run_well("post_mortem", {folder.path().string()});
  CHECK(sentence.starts_with("rank 1 (pid "));
  CHECK_THAT(sentence, Contains("has not started all_reduce 'gradients 3'"));
  CHECK(test::count_lines(sentence) == 1);

  const std::string all = test::run_well("post_mortem", {folder.path().string(), "--all"});
  CHECK(all.starts_with(sentence));
  CHECK_THAT(all, Contains("rank 0 of 2") && Contains(" open  all_reduce 'gradients 3'") &&
                      Contains(" ms  all_reduce 'gradients 2'"));

  const test::TempDir empty;
  const auto result = test::run_program("post_mortem", {empty.path().string()});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Contains("no ranks' files in"));
  CHECK(test::run_program("post_mortem", {}).exit_code == 2);
}

}  // namespace sluice::test::post_mortem_test
