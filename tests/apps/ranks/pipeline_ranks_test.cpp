#include <sstream>

#include <nlohmann/json.hpp>

#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/training/ranks.h"

// A model divided between the ranks of a job: the numbers of one process, exactly. What is wrong
// with a pipeline is refused before anything is computed, and a fault in the middle of one ends the
// job.

namespace sluice::test::pipeline_ranks_test {
namespace {

const Flags eight_blocks{{"--n-layer", "8"},
                         {"--batch-size", "8"},
                         {"--micro-batch", "1"},
                         {"--dropout", "0.1"},
                         {"--grad-clip", "1"}};

/// Loss and norm of every step.
std::vector<std::pair<double, double>> numbers(const fs::path& output) {
  std::vector<std::pair<double, double>> all;
  std::istringstream log(read_file(output / "log.jsonl"));
  for (std::string line; std::getline(log, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.at("event") == "train") all.emplace_back(event.at("loss"), event.at("grad_norm"));
  }
  return all;
}

struct Row {
  int ranks;
  Flags flags;
};

struct Pipelines : RankRuns {
  /// Returns the numbers of each of the runs.
  std::vector<std::vector<std::pair<double, double>>> run(const std::vector<Row>& rows) const {
    std::vector<RankJob> jobs;
    for (const auto& [ranks, flags] : rows)
      jobs.push_back(
          {ranks, "run " + std::to_string(jobs.size() + 100), flags + Flags{{"--save", "never"}}});
    run_well(jobs);
    std::vector<std::vector<std::pair<double, double>>> all;
    for (const RankJob& job : jobs) {
      all.push_back(numbers(path() / job.output));
      fs::remove_all(path() / job.output);
    }
    return all;
  }
  std::vector<std::pair<double, double>> run(int ranks, const Flags& flags) const {
    return run({{ranks, flags}}).front();
  }
};

}  // namespace

TEST_CASE("2, 4 and 8 ranks of a pipeline have the numbers of one process", "[pipeline]") {
  if (!have_mpirun()) return;
  const Pipelines runs;
  const std::size_t steps = by_form(8, 30);
  std::vector<Row> rows{
      {1, {{"--pipeline", "gpipe"}}},
      {2, {{"--pp", "2"}, {"--pipeline", "gpipe"}}},
      {2, {{"--pp", "2"}, {"--pipeline", "interleaved*3"}}},
      {4, {{"--pp", "4"}}},
      {4, {{"--pp", "4"}, {"--pipeline", "interleaved*2"}, {"--stash", "input"}}},
      {4, {{"--pp", "4"}, {"--pipeline-split", "time"}}},
      {4, {{"--pp", "4"}, {"--pipeline", "zb-h1"}}},
      {8, {{"--pp", "8"}, {"--pipeline", "1f1b"}}},
  };
  for (Row& row : rows)
    row.flags = eight_blocks + row.flags + Flags{{"--steps", std::to_string(steps)}};
  const auto found = runs.run(rows);
  REQUIRE(found[0].size() == steps);
  CHECK(found[0].back().first < found[0].front().first);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    INFO(shown(rows[i].ranks, rows[i].flags));
    const bool same = found[i] == found[0];
    CHECK(same);
  }
}

TEST_CASE("replicas that are pipelines, with divided state", "[pipeline]") {
  if (!have_mpirun()) return;
  const Pipelines runs;
  const Flags ten = eight_blocks + Flags{{"--steps", "10"}, {"--pipeline", "1f1b"}};
  const auto expected = runs.run(2, ten);
  REQUIRE(expected.size() == 10);
  for (const char* zero : {"0", "1"}) {
    const auto found = runs.run(4, ten + Flags{{"--pp", "2"}, {"--dp", "2"}, {"--zero", zero}});
    const bool same = found == expected;
    CHECK(same);
  }
}

TEST_CASE("a pipeline whose ranks share a GPU exchanges more than the stages' results",
          "[pipeline][device]") {
  if (!have_mpirun() || device_kinds().size() < 2) return;
  const Pipelines runs;
  // The table, which both ends add up, is larger than what one stage hands to the next.
  const Flags flags{{"--steps", "2"},         {"--device", "cuda"},   {"--communication", "staged"},
                    {"--vocab-size", "400"},  {"--micro-batch", "1"}, {"--pipeline", "1f1b"},
                    {"--gpu-memory", "64MiB"}};
  const auto expected = runs.run(1, flags);
  REQUIRE(expected.size() == 2);
  const bool same = runs.run(2, flags + Flags{{"--pp", "2"}}) == expected;
  CHECK(same);
  // One of four inputs stays on the device.
  const bool spilled =
      runs.run(2,
               flags + Flags{{"--pp", "2"}, {"--pipeline", "gpipe"}, {"--stash", "input:3KiB"}}) ==
      expected;
  CHECK(spilled);
}

TEST_CASE("pipelines that cannot be are refused with the arithmetic or the schedule's rows",
          "[pipeline]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const auto file = [&](const char* name, const std::string& text) {
    write_file(runs.path() / name, text);
    return runs.at(name);
  };
  const std::string circle = file("circle.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  const std::string three = file("three.csv", "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
  const std::string one = file("one.csv", "0F0,0B0\n1F0,1B0\n");
  const std::string odd = file("odd.csv", "0F0,0X0\n1F0,1B0\n");
  const std::string twice = file("twice.csv", "0F0,0F0,0B0\n1F0,1B0\n");
  const Flags two{{"--pp", "2"}, {"--batch-size", "2"}, {"--micro-batch", "1"}};
  std::vector<Refusal> rows{
      {4,
       {{"--pp", "4"}},
       {"a pipeline of 4 stages needs 4 blocks or more, and the model has 2", "--pp"}},
      {2,
       {{"--pp", "2"}, {"--pipeline", "interleaved*3"}},
       {"6 stages", "the model has 2", "--pipeline"}},
      {2, {{"--pp", "2"}, {"--pipeline", "interleaved*0"}}, {"number of stages on each rank"}},
      {4, {{"--pp", "2"}, {"--dp", "3"}}, {"--dp 3 x --pp 2", "but 4 were started"}},
      {1, {{"--pp", "2"}}, {"--pp 2 needs 2 ranks", "alone", "mpirun -n 2"}},
      {2,
       {{"--pp", "2"}, {"--micro-batch", "3"}},
       {"--batch-size 4 is not divisible by --micro-batch 3", "1 * 3 = 3"}},
      {2,
       two + Flags{{"--pipeline-split", "1,2"}},
       {"\"1,2\" has 2 stages with 3 blocks", "2 stages and 2 blocks"}},
      {2, two + Flags{{"--pipeline", circle}}, {"0F1", "1B0"}},
      {2,
       two + Flags{{"--pipeline", three}},
       {"ranks: 3, and micro-batches: 1", "--pp 2 and 2 micro-batches"}},
      {2, two + Flags{{"--pipeline", odd}}, {"0X0"}},
      {2, two + Flags{{"--pipeline", twice}, {"--batch-size", "1"}}, {"0F0"}},
      {2, two + Flags{{"--pipeline", "zigzag"}}, {"zigzag", "gpipe, 1f1b"}},
      {2,
       {{"--pp", "2"}, {"--stash", "input:1KiB"}, {"--pipeline", "gpipe"}, {"--micro-batch", "1"}},
       {"--stash input:1KiB", "rank 1 keeps the inputs of up to 4 micro-batches"}},
      // Nothing is for nobody.
      {2, {{"--stash", "input"}}, {"--stash input", "--pp"}},
      {2, {{"--pipeline-split", "1,1"}}, {"--pipeline-split 1,1", "--pp"}}};
  if (long_form()) {  // two batches of eight are enough for the short form
    rows.push_back({4, {{"--pp", "3"}}, {"--pp 3", "but 4 were started"}});
    rows.push_back({2,
                    two + Flags{{"--pipeline", one}},
                    {"ranks: 2, and micro-batches: 1", "--pp 2 and 2 micro-batches"}});
  }
  refused(runs, rows);
}

TEST_CASE("a fault in the middle of a schedule ends the job, which names the rank", "[pipeline]") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const Flags two_steps =
      eight_blocks +
      Flags{{"--pp", "4"}, {"--steps", "2"}, {"--save", "never"}, {"--collective-timeout", "6"}};
  runs.run_well(4, "clean", two_steps + Flags{{"--rank-files", runs.at("clean.ranks")}});
  const auto record = read_record(record_path(runs.at("clean.ranks"), 1));
  REQUIRE(record);
  std::uint64_t number = 0;  // the last is of the second step
  for (const auto& operation : record->operations)
    if (operation.signature.label_text() == "gradient 4") number = operation.number;
  REQUIRE(number > 0);
  std::vector<RankJob> jobs;
  for (const std::string kind : {"exit", "kill", "throw", "skip", "mismatch", "stop", "slow"})
    jobs.push_back(
        {4, kind,
         two_steps + Flags{{"--rank-files", runs.at(kind + ".ranks")},
                           {"--inject", "rank=1,op=" + std::to_string(number) + ",kind=" + kind}}});
  const auto results = runs.run(jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const RanksResult& result = results[i];
    INFO(jobs[i].output << "\n" << result.err);
    CHECK_FALSE(result.timed_out);
    CHECK(result.exit_code != 0);
    CHECK(result.left_behind.empty());
    REQUIRE(result.errors.size() <= 1);
    // A rank that did not get to speak leaves it to the post-mortem.
    const std::string sentence =
        result.errors.empty() ? run_program("post_mortem", {jobs[i].changes.at("--rank-files")}).out
                              : result.errors[0];
    CHECK_THAT(sentence, Contains("rank 1") && Contains("operation"));
    if (jobs[i].output == "stop" || jobs[i].output == "slow")
      CHECK_THAT(sentence, Contains("waited 6 s"));
  }
}

}  // namespace sluice::test::pipeline_ranks_test
