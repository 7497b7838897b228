#include <algorithm>
#include <csignal>
#include <map>
#include <thread>

#include "tests/faults/trace.h"
#include "tests/support/catch.h"

// A run is killed and goes on. What was said to be saved is there, the newest checkpoint is whole,
// and the end has the bytes of a run that nobody killed.

namespace sluice::test::kills_test {
namespace {

const Arguments changing{"write",     "pwrite64", "fsync",    "fdatasync", "rename", "renameat",
                         "renameat2", "unlink",   "unlinkat", "rmdir",     "mkdir",  "ftruncate"};

std::string after_kill(FaultRuns& runs, const std::string& output) {
  Problems problems;
  problems.add(runs.keeps_word(output));
  problems.add(runs.goes_on(output));
  runs.forget(output);
  return problems.text();
}

/// Kills the run at each of these calls.
void kill_at(FaultRuns& runs, const std::vector<Call>& calls, Tally& tally) {
  for (const Call& call : calls) {
    const Ended ended = runs.run("killed", {.tracer = injecting(call, "signal=KILL")});
    // Ranks wake each other by writes, more or fewer each time: the last numbers may not come up.
    if (runs.kind().ranks > 1 && call.writes() && ended.exit_code == 0) {
      runs.forget("killed");
      continue;
    }
    Problems problems;
    problems.require(ended.signal == SIGKILL || ended.exit_code != 0, "it was not killed");
    problems.require(!ended.timed_out, "the job hung");
    problems.add(after_kill(runs, "killed"));
    tally.round(text_of(call), problems.text());
  }
}

/// The short form has a few calls of each name, every other one of them, beginning with the first
/// or with the second.
std::vector<Call> some_of_each(const std::vector<Call>& calls, bool second) {
  if (long_form()) return calls;
  std::map<std::string, std::vector<Call>> by_name;
  for (const Call& call : calls)
    by_name[call.name].push_back(call);
  std::vector<Call> some;
  for (const auto& [name, alike] : by_name)
    for (const Call& call : thinned(alike, std::min<std::size_t>(alike.size(), 19)))
      if (second = !second; second) some.push_back(call);
  return some;
}

}  // namespace

TEST_CASE("a kill at any call that changes files loses nothing") {
  if (!have_strace()) return;
  for (const Kind& kind : kinds()) {
    FaultRuns runs(kind);
    Tally tally(std::string("a: kill at every call, ") + kind.name);
    std::vector<Call> writes = traced(runs, "traced", changing), others = writes;
    std::erase_if(writes, [](const Call& call) { return !call.writes(); });
    std::erase_if(others, [](const Call& call) { return call.writes(); });
    REQUIRE(others.size() > 30);
    kill_at(runs, some_of_each(others, kind.threads), tally);
    kill_at(runs, thinned(writes, 300), tally);
  }
}

TEST_CASE("a kill while a step is done again that is already saved loses nothing") {
  if (!have_strace()) return;
  // A run that has gone back to an older checkpoint comes to a step that has one.
  FaultRuns runs(kinds().front());
  Tally tally("a: kill while a checkpoint is replaced");
  const Flags keep{{"--keep", "5"}};
  const Ended first = runs.run("first", {.flags = keep});
  REQUIRE(first.exit_code == 0);
  const auto again = [&](const std::string& output) {
    fs::copy(runs.path() / "first", runs.path() / output, fs::copy_options::recursive);
    return keep +
           Flags{{"--resume", (runs.path() / output / "checkpoints/step-00000002").string()}};
  };
  std::vector<Call> calls = traced(runs, "traced", changing, again("traced"));
  std::erase_if(calls, [](const Call& call) { return call.writes(); });
  for (const Call& call : thinned(calls, 15)) {
    const Flags back = again("killed");
    runs.run("killed", {.flags = back, .tracer = injecting(call, "signal=KILL")});
    tally.round(text_of(call), runs.goes_on("killed", keep));
    runs.forget("killed");
  }
}

TEST_CASE("kills at any moment lose nothing") {
  for (const Kind& kind : kinds()) {
    FaultRuns runs(kind);
    Tally tally(std::string("b: kill at random moments, ") + kind.name);
    const int rounds = by_form(6, kind.ranks == 1 ? 200 : 100);
    for (int round = 0; round < rounds; ++round) {
      auto random = draws(static_cast<std::uint64_t>(round));
      const double share = std::uniform_real_distribution(0.0, 1.1)(random);
      // Kills one of several ranks, mpirun, or all of them.
      const auto whom = static_cast<std::size_t>(
          kind.ranks == 1 ? 0 : std::uniform_int_distribution(0, kind.ranks + 1)(random));
      Job job(runs, "killed");
      std::this_thread::sleep_for(std::chrono::duration<double>(share * runs.seconds()));
      const auto ranks = job.ranks();
      const bool everybody = whom > static_cast<std::size_t>(kind.ranks);
      if (kind.ranks == 1 || everybody || whom == static_cast<std::size_t>(kind.ranks))
        job.send(SIGKILL);
      for (std::size_t i = 0; i < ranks.size(); ++i)
        if (everybody || i == whom) ::kill(ranks[i], SIGKILL);
      const Ended ended = job.finish(30);
      Problems problems;
      problems.require(!ended.timed_out, "the job hung");
      problems.require(ended.left_behind.empty(), "processes were left behind");
      problems.add(after_kill(runs, "killed"));
      tally.round("round " + std::to_string(round), problems.text());
    }
  }
}

}  // namespace sluice::test::kills_test
