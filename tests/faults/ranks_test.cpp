#include <csignal>
#include <filesystem>

#include "apps/checkpoint/checkpoint_folder.h"
#include "tests/faults/small_disk.h"
#include "tests/faults/trace.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

// Failures between ranks that tests/apps/ranks/ranks_faults_test.cpp does not cover (it has a rank
// that exits, is killed, aborts, throws, has no memory, stops, is slow, skips an operation, or
// starts another one, or one of another size): a rank that freezes while it saves, a trace on a
// full disk, and no space in shared memory.

namespace sluice::test::ranks_test {
namespace {

// The ranks of these runs measure what their matrix products reach, as those of users do.
const Kind two_ranks{"2 ranks", 2, {{"--micro-batch", "1"}, {"--peak-tflops", "-"}}, true};

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

TEST_CASE("ranks wait for a disk that is slower than the deadline") {
  if (!have_mpirun() || !have_strace()) return;
  FaultRuns runs(two_ranks);
  Tally tally("k: a disk slower than the deadline");
  const Flags impatient{{"--collective-timeout", "4"}};  // seconds; ranks need two to start
  // strace delays three calls of fsync of rank 0; the last of them is in a checkpoint.
  const Ended saving = runs.run(
      "slow",
      {.flags = impatient, .tracer = injecting("fsync", "delay_enter=6000000:when=3..15+6")}, 120);
  Problems problems;
  problems.require(!saving.timed_out && saving.exit_code == 0, saving.err);
  problems.require(saving.out.find("for rank 0 at 'checkpoint'") != std::string::npos,
                   "no line says what ranks wait for: " + saving.out);
  problems.add(difference(outcome(runs.path() / "slow"), runs.undisturbed()));
  tally.round("saving", problems.text());

  // Rank 0 opens the checkpoint late, to verify it and to read it.
  runs.run("early", {.flags = {{"--steps", "2"}}});
  const fs::path weights =
      checkpoint_path(runs.path() / "early/checkpoints", 2) / "weights.safetensors";
  Arguments late = injecting("openat", "delay_enter=6000000");
  late.insert(late.end(), {"-P", weights.string()});
  const Ended reading = runs.run("early", {.flags = impatient, .tracer = late}, 120);
  Problems more;
  more.require(!reading.timed_out && reading.exit_code == 0, reading.err);
  more.require(reading.out.find("for rank 0 at 'checkpoint'") != std::string::npos,
               "no line says what ranks wait for: " + reading.out);
  more.add(difference(outcome(runs.path() / "early"), runs.undisturbed()));
  tally.round("reading", more.text());
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
  // The part of Open MPI that shares memory is `vader` in version 4 and `sm` in 5.
  const std::string shm = runs.at("shm");
  const Ended ended = runs.run("full", {.mpirun = {"--mca", "btl_vader_backing_directory", shm,
                                                   "--mca", "btl_sm_backing_directory", shm}});
  Problems problems;
  problems.require(!ended.timed_out && ended.exit_code == 0, ended.err);
  problems.add(difference(outcome(runs.path() / "full"), runs.undisturbed()));
  tally.round("64k", problems.text());
}

}  // namespace sluice::test::ranks_test
