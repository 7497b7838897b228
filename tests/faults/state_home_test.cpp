#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/faults/small_disk.h"
#include "tests/faults/trace.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

// A run keeps its optimizer state in a file (--state-home). Its disk is full or fails, the run is
// killed, or another run has the same folder. No checkpoint is lost, and nothing is left behind.

namespace sluice::test::state_home_test {
namespace {

Flags on_disk(const std::string& folder) {
  return {{"--state-home", folder}, {"--placement", "offload-state"}, {"--stream-chunks", "1024"}};
}

}  // namespace

TEST_CASE("a disk too small for the state is told of before the training") {
  FaultRuns runs(kinds().front());
  Tally tally("g: state on a full disk");
  const SmallDisk disk(runs.path() / "home", "64k");
  if (!disk.mounted()) return skip("no file system can be mounted here");
  const Flags flags = on_disk(runs.at("home"));
  const Ended ended = runs.run("out", {.flags = flags});
  Problems problems;
  problems.require(ended.exit_code == 1 && count_lines(ended.words) == 1,
                   "exit code " + std::to_string(ended.exit_code) + ": " + ended.err);
  for (const std::string& word :
       {std::string("--state-home: cannot take "), runs.at("home"),
        std::string(std::strerror(ENOSPC)), std::string("bytes are free")})
    problems.require(ended.words.find(word) != std::string::npos,
                     word + " is not in " + ended.words);
  problems.require(ended.out.find("step 1") == std::string::npos, "it trained first");
  disk.change(0, "8m");
  runs.forget("out");
  problems.require(runs.run("out", {.flags = flags}).exit_code == 0, "not with more space either");
  problems.add(difference(outcome(runs.path() / "out"), runs.undisturbed()));
  problems.require(fs::is_empty(runs.at("home")), "the disk is not empty");
  tally.round("64 KiB", problems.text());
}

TEST_CASE("a disk that fails ends the run, which goes on from its checkpoint") {
  if (!have_strace()) return;
  FaultRuns runs(kinds().front());
  Tally tally("g: state on a failing disk");
  fs::create_directory(runs.path() / "home");
  const Flags flags = on_disk(runs.at("home"));
  // Every thread's later calls fail. The main thread reads more: other files, and all of the state
  // for a save.
  for (const auto& [call, first] : {std::pair("pread64", 20),
                                    {"pread64", 40},
                                    {"pwrite64", 3},
                                    {"pwrite64", 8},
                                    {"pwrite64", 14}}) {
    const Ended ended = runs.run(
        "failed",
        {.flags = flags, .tracer = injecting(call, fmt::format("error=EIO:when={}+", first))});
    Problems problems;
    problems.require(!ended.timed_out && ended.left_behind.empty(), "it hung");
    problems.require(ended.exit_code == 1 && count_lines(ended.words) == 1,
                     "exit code " + std::to_string(ended.exit_code) + ": " + ended.err);
    problems.require(ended.words.find(std::strerror(EIO)) != std::string::npos &&
                         ended.words.find(runs.at("home")) != std::string::npos,
                     "folder or reason is not in: " + ended.words);
    problems.add(runs.keeps_word("failed"));
    problems.require(fs::is_empty(runs.at("home")), "a file was left behind");
    problems.add(runs.goes_on("failed", flags));
    tally.round(fmt::format("{} from number {} on", call, first), problems.text());
    runs.forget("failed");
  }
}

TEST_CASE("a run that was killed leaves no state on the disk and goes on") {
  FaultRuns runs(kinds().front());
  Tally tally("g: kill with state on a disk");
  fs::create_directory(runs.path() / "home");
  const Flags flags = on_disk(runs.at("home"));
  for (const double share : {0.3, 0.6, 0.9}) {
    Job job(runs, "killed", {.flags = flags});
    std::this_thread::sleep_for(std::chrono::duration<double>(share * runs.seconds(flags)));
    job.send(SIGKILL);
    job.finish(30);
    Problems problems;
    problems.require(fs::is_empty(runs.at("home")), "a file was left behind");
    // It may go on in memory, or on the disk.
    problems.add(runs.goes_on("killed", share < 0.5 ? Flags{} : flags));
    tally.round(fmt::format("after {:.1f} of its time", share), problems.text());
    runs.forget("killed");
  }
}

TEST_CASE("two runs may have their state in one folder") {
  FaultRuns runs(kinds().front());
  Tally tally("g: two runs with one folder");
  fs::create_directory(runs.path() / "home");
  const Flags flags = on_disk(runs.at("home")), other = flags + Flags{{"--seed", "7"}};
  Job one(runs, "one", {.flags = flags}), two(runs, "two", {.flags = other});
  Problems problems;
  problems.require(one.finish().exit_code == 0 && two.finish().exit_code == 0,
                   "one of them failed");
  problems.add(difference(outcome(runs.path() / "one"), runs.undisturbed()));
  problems.add(difference(outcome(runs.path() / "two"), runs.undisturbed({{"--seed", "7"}})));
  problems.require(difference(outcome(runs.path() / "one"), outcome(runs.path() / "two")) != "",
                   "both are the same run");
  problems.require(fs::is_empty(runs.at("home")), "a file was left behind");
  tally.round("two seeds", problems.text());
}

}  // namespace sluice::test::state_home_test
