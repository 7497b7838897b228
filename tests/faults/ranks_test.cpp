#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>

#include "tests/faults/small_disk.h"
#include "tests/faults/trace.h"
#include "tests/support/skip.h"

// Failures between ranks that tests/apps/ranks/ranks_faults_test.cpp does not cover (it has a rank
// that exits, is killed, aborts, throws, has no memory, stops, is slow, skips an operation, or
// starts another one, or one of another size): a rank that freezes while it saves, a trace on a
// full disk, and no space in shared memory.

namespace sluice::test::ranks_test {
namespace {

const Kind two_ranks{"2 ranks", 2, {{"--micro-batch", "1"}}, true};

}  // namespace

TEST_CASE("a rank that freezes during a save ends the job at the deadline") {
  if (!have_mpirun() || !have_strace()) return;
  FaultRuns runs(two_ranks);
  Tally tally("k: rank frozen during a save");
  const int rounds = by_form(1, 10);
  for (int round = 0; round < rounds; ++round) {
    const std::string files = runs.at("frozen.ranks");
    Job job(runs, "frozen",
            {.flags = {{"--collective-timeout", "3"}, {"--rank-files", files}},
             .tracer = injecting("fsync", "delay_enter=30000")});
    const pid_t rank = process_of_rank(0, files);
    const fs::path folder = runs.path() / "frozen" / "checkpoints";
    REQUIRE(eventually([&] { return !temporaries(folder).empty(); }));
    ::kill(rank, SIGSTOP);
    const Ended ended = job.finish(30);
    Problems problems;
    problems.require(!ended.timed_out && ended.seconds < 15, "the job hung");
    problems.require(ended.left_behind.empty(), "processes were left behind");
    problems.require(ended.exit_code != 0, "exit code 0");
    problems.require(ended.words.find("rank 0 (pid ") != std::string::npos &&
                         ended.words.find("is stopped") != std::string::npos,
                     "the rank is not named: " + ended.err);
    problems.add(runs.keeps_word("frozen"));
    problems.add(runs.goes_on("frozen"));
    tally.round("round " + std::to_string(round), problems.text());
    runs.forget("frozen");
    fs::remove_all(files);
  }
}

TEST_CASE("a trace that cannot be written ends the job with the reason, and loses nothing") {
  if (!have_mpirun()) return;
  FaultRuns runs(two_ranks);
  Tally tally("k: trace on a full disk");
  const Ended ended = runs.run("traced", {.flags = {{"--trace", "/dev/full"}}});
  Problems problems;
  problems.require(!ended.timed_out && ended.seconds < 15, "the job hung");
  problems.require(ended.exit_code == 1, "exit code " + std::to_string(ended.exit_code));
  problems.require(
      ended.words.find("cannot write /dev/full: No space left on device") != std::string::npos &&
          ended.words.find("rank 0") != std::string::npos,
      "path, reason or rank is not in: " + ended.err);
  problems.add(runs.goes_on("traced"));
  tally.round("/dev/full", problems.text());
}

TEST_CASE("without space in shared memory ranks exchange in another way") {
  if (!have_mpirun()) return;
  FaultRuns runs(two_ranks);
  Tally tally("k: shared memory is full");
  const SmallDisk disk(runs.path() / "shm", "64k");
  if (!disk.mounted()) return skip("no file system can be mounted here");
  const Ended ended =
      runs.run("full", {.mpirun = {"--mca", "btl_vader_backing_directory", runs.at("shm")}});
  Problems problems;
  problems.require(!ended.timed_out && ended.exit_code == 0, ended.err);
  problems.add(difference(outcome(runs.path() / "full"), runs.undisturbed()));
  tally.round("64k", problems.text());
}

}  // namespace sluice::test::ranks_test
