#include <csignal>
#include <list>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/training/ranks.h"

// One of four ranks fails. The job ends by itself, says in one line which rank and where, leaves no
// process behind, and its last checkpoint goes on to the bytes of a run in which nothing failed.

namespace sluice::test::ranks_faults_test {
namespace {

const Flags six_steps{{"--steps", "6"}, {"--save-every", "2"}, {"--collective-timeout", "10"}};

/// The number of the last operation with this label, by a rank's own count.
std::uint64_t number_of(const fs::path& rank_files, const std::string& label) {
  const auto record = read_record(record_path(rank_files, 1));
  REQUIRE(record);
  std::uint64_t number = 0;
  for (const auto& operation : record->operations)
    if (operation.signature.label_text() == label) number = operation.number;
  REQUIRE(number > 0);
  return number;
}

/// A run without faults and what can be told from it.
struct Clean : RankRuns {
  Clean() {
    run_well(4, "clean", six_steps + Flags{{"--rank-files", at("clean.ranks")}});
    expected = trained_files(path() / "clean");
  }

  /// A fault before an operation: so many after the last one with the label.
  struct Row {
    const char* kind;
    std::vector<std::string> words;
    Flags more = {};
    const char* label = "gradients 0";
    std::uint64_t after = 0;
  };

  /// Checks the rules for every job that did not end well.
  static std::string sentence_of(const RanksResult& result, const std::string& rank_files) {
    INFO(result.err);
    CHECK_FALSE(result.timed_out);
    CHECK(result.exit_code != 0);
    CHECK(result.left_behind.empty());
    REQUIRE(result.errors.size() <= 1);
    if (!result.errors.empty()) {
      const std::string said = run_program("post_mortem", {rank_files}).out;
      CHECK_THAT(result.errors[0] + "\n", EndsWith(": error: " + said));
      return result.errors[0];
    }
    // mpirun kills what is left of a job one second after the first has died. A rank that did not
    // get to speak in that time leaves it to the post-mortem.
    CHECK_FALSE(fs::exists(fs::path(rank_files) / "spoken"));
    return run_program("post_mortem", {rank_files}).out;
  }

  /// Runs with one fault each. Nothing of the sixth step has been saved then. From the checkpoint
  /// before, each goes on until `expected`; in the short form only the first does and the last.
  void fails(const std::vector<Row>& rows) const {
    std::vector<RankJob> jobs, rest;
    for (const auto& row : rows) {
      const std::uint64_t number = number_of(path() / "clean.ranks", row.label) + row.after;
      const std::string output = std::to_string(jobs.size()) + " " + row.kind;
      const std::string fault = "rank=1,op=" + std::to_string(number) + ",kind=" + row.kind;
      jobs.push_back({4, output,
                      six_steps + row.more +
                          Flags{{"--rank-files", at(output + ".ranks")}, {"--inject", fault}}});
      if (long_form() || jobs.size() == 1 || jobs.size() == rows.size())
        rest.push_back({4, output, six_steps});
    }
    const auto results = run(jobs);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      INFO(shown(4, jobs[i].changes));
      const std::string kind = rows[i].kind;
      const std::string sentence = sentence_of(results[i], jobs[i].changes.at("--rank-files"));
      // Nobody crashes who was not told to.
      if (kind != "abort" && kind != "segfault")
        CHECK_THAT(results[i].err, !Contains("Process received signal"));
      if (!results[i].errors.empty() || !launcher_kills_at_once())
        for (const std::string& word : rows[i].words)
          CHECK_THAT(sentence, Contains(word));
      CHECK_THAT(sentence, Contains("rank 1") && Contains("operation"));
      const auto saved = list_checkpoints(path() / jobs[i].output / "checkpoints");
      REQUIRE(saved.size() == 2);
      CHECK(saved.back().filename() == "step-00000004");
    }
    run_well(rest);
    for (const RankJob& job : rest) {
      INFO(job.output);
      CHECK(trained_files(path() / job.output) == expected);
      for (const auto& entry : fs::directory_iterator(path() / job.output / "checkpoints"))
        CHECK_THAT(entry.path().filename().string(), !Contains("tmp"));
    }
  }

  TrainedFiles expected;
};

/// Of the cases that reach it. No wait of a sound job comes near it.
const std::string deadline = "3", waited = "waited " + deadline + " s";
const std::string operation = "all_reduce 'gradients 0' (operation ";

}  // namespace

TEST_CASE("a rank that ends in the middle of a step ends the job, which says who and where") {
  if (!have_mpirun()) return;
  const Clean clean;
  const std::vector<std::string> lost{"rank 1 (pid ", "killed or exited without a word",
                                      "at \"step 6\"", "ranks 0, 2, 3 wait", operation};
  const std::vector<Clean::Row> rows{
      {"exit", lost},
      {"kill", lost},
      {"abort", lost},
      {"segfault", lost},
      {"throw", {"rank 1 was made to fail before its operation"}},
      {"memory",
       {"rank 1, after all_reduce 'stop' (operation ", "at \"step 6\"", "no memory left"}}};
  clean.fails(rows);
}

TEST_CASE("ranks that lose each other say who started what") {
  if (!have_mpirun()) return;
  const Clean clean;
  const std::string others = "where the others started all_reduce of ";
  const std::vector<Clean::Row> rows{
      {"mismatch", {"rank 1 started barrier 'gradients 0' (operation ", others}},
      {"count", {"rank 1 started all_reduce of ", "f32 'gradients 0' (operation ", others}},
      {"type", {"rank 1 started all_reduce of ", "bf16 'gradients 0' (operation ", others}},
      {"skip", {"rank 1 started all_reduce of ", "f64 'losses' (operation ", others}}};
  clean.fails(rows);
}

TEST_CASE("a rank that does not go on is told of at the deadline") {
  if (!have_mpirun()) return;
  const Clean clean;
  const Flags waits{{"--collective-timeout", deadline}};
  const std::vector<Clean::Row> rows{
      {"stop",
       {"rank 1 (pid ", "is stopped, by a signal", "wait for it in " + operation, waited},
       waits},
      {"slow",
       {"rank 1 (pid ", "has not started " + operation, "at \"step 6\"", waited + " in"},
       waits},
      // Ranks that lose each other do so too if operations are not compared one by one.
      {"mismatch",
       {"rank 1 called barrier 'gradients 0' as operation ",
        "where ranks 0, 2, 3 called all_reduce of ", waited},
       waits + Flags{{"--checked", "false"}}}};
  clean.fails(rows);
}

TEST_CASE("a rank that dies while a checkpoint is written leaves the one before") {
  if (!have_mpirun()) return;
  const Clean clean;
  clean.fails({{"kill", {}, {}, "replicas", 4}, {"throw", {}, {}, "replicas", 4}});
}

TEST_CASE("a signal from outside to any rank at any moment") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  struct Row {
    int rank, signal;
    const char* words;
  };
  const Row rows[] = {{0, SIGKILL, "killed or exited without a word"},
                      {2, SIGKILL, "killed or exited without a word"},
                      {3, SIGSTOP, "is stopped"}};
  const auto output = [](const Row& row) { return "signal " + std::to_string(row.rank); };
  const auto checkpoints = [&](const Row& row) {
    return list_checkpoints(runs.path() / output(row) / "checkpoints");
  };
  std::list<RunningRanks> jobs;
  for (const Row& row : rows)
    jobs.emplace_back(
        runs, 4, output(row),
        Flags{{"--steps", "1000000"}, {"--save-every", "5"}, {"--collective-timeout", deadline}});
  auto job = jobs.begin();
  for (const Row& row : rows) {
    REQUIRE(eventually([&] { return checkpoints(row).size() > 1; }));
    ::kill((job++)->rank(row.rank), row.signal);
  }
  std::vector<RankJob> rest;
  job = jobs.begin();
  for (const Row& row : rows) {
    INFO(output(row));
    const std::string sentence =
        Clean::sentence_of((job++)->finish(), runs.at(output(row) + ".ranks"));
    CHECK_THAT(sentence, Contains(row.words) && Contains("operation"));
    if (!launcher_kills_at_once() || row.signal != SIGKILL)
      CHECK_THAT(sentence, Contains("rank " + std::to_string(row.rank) + " (pid "));
    // The last save is whole: resuming it leads to the bytes of a run that never stopped.
    const std::string last = checkpoints(row).back().filename().string();
    const Flags more{{"--steps", std::to_string(std::stoi(last.substr(5)) + 3)}};
    rest.push_back({4, output(row), more});
    rest.push_back({4, "whole " + output(row), more});
  }
  runs.run_well(rest);
  for (const Row& row : rows) {
    INFO(output(row));
    CHECK(trained_files(runs.path() / output(row)) ==
          trained_files(runs.path() / ("whole " + output(row))));
  }
}

TEST_CASE("a signal to one rank stops all after the step, with a checkpoint") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  RunningRanks job(runs, 4, "stopped", {{"--steps", "1000000"}});
  const fs::path log = runs.path() / "stopped" / "log.jsonl";
  REQUIRE(eventually(
      [&] { return fs::exists(log) && read_file(log).find("\"train\"") != std::string::npos; }));
  CHECK(processes_with(runs.at("stopped")).size() == 4);
  ::kill(job.rank(2), SIGUSR1);
  job.finish().require_good();
  const auto steps = logged_losses(runs.path() / "stopped").size();
  const auto last = list_checkpoints(runs.path() / "stopped" / "checkpoints").back();
  CHECK(static_cast<std::size_t>(std::stoi(last.filename().string().substr(5))) == steps);
  CHECK_THAT(read_file(log), Contains("\"stopped_by\":\"a signal to another rank\""));
  const Flags more{{"--steps", std::to_string(steps + 3)}};
  runs.run_well(4, "stopped", more);
  runs.run_well(4, "whole", more);
  CHECK(trained_files(runs.path() / "stopped") == trained_files(runs.path() / "whole"));
}

TEST_CASE("scripts/launch starts ranks, shows the command, and tells why a job failed") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const auto launch = [&](const Arguments& more, const std::string& output, const Flags& changes) {
    // Its temporary folder, which it keeps when the job fails, is to go with this test's.
    Arguments all{"TMPDIR=" + runs.path().string(), SLUICE_SOURCE_DIR "/scripts/launch"};
    all.insert(all.end(), more.begin(), more.end());
    all.insert(all.end(), {"-n", "2", "--bin", SLUICE_BIN_DIR, "train_gpt2"});
    for (const auto& [flag, value] : runs.flags(output, changes))
      all.insert(all.end(), {flag, value});
    return RunningProgram("/usr/bin/env", all).finish(60);
  };
  const Flags three{{"--steps", "3"}, {"--threads", "-"}};
  const ProgramResult dry = launch({"--dry-run"}, "dry", three);
  CHECK(dry.exit_code == 0);
  CHECK_THAT(dry.out, Contains("mpirun") && Contains("-n 2") && Contains("train_gpt2 --") &&
                          Contains("--rank-files"));
  CHECK_FALSE(fs::exists(runs.path() / "dry"));

  const ProgramResult good = launch({}, "good", three);
  INFO(good.err);
  CHECK(good.exit_code == 0);
  CHECK(logged_losses(runs.path() / "good").size() == 3);
  for (const auto& entry : fs::directory_iterator(runs.path()))
    CHECK(entry.path().filename().string().rfind("sluice-ranks", 0) != 0);

  const ProgramResult bad =
      launch({}, "bad", three + Flags{{"--inject", "rank=1,op=20,kind=kill"}});
  INFO(bad.err);
  CHECK(bad.exit_code != 0);
  // MPICH and Open MPI 5 end the others so soon that all were killed, as the sentence says then.
  CHECK_THAT(bad.err,
             (Contains("error: ") || Contains("launch: rank")) && Contains("rank 1 (pid "));
  CHECK_THAT(bad.err, Contains("launch: what each rank did last is in "));
  CHECK(processes_with(runs.at("bad")).empty());
}

}  // namespace sluice::test::ranks_faults_test
