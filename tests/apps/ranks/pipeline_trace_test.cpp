#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/training/ranks.h"

// Tests what a run of several ranks reports about its time.

namespace sluice::test::pipeline_trace_test {
namespace {

std::vector<Json> trace_at(const std::string& file) {
  std::string text = read_file(file);
  REQUIRE(text.ends_with(",\n"));
  text.resize(text.size() - 2);
  return Json::parse(text + "]");
}

std::map<int, std::string> names_in(const std::vector<Json>& events) {
  std::map<int, std::string> names;
  for (const Json& event : events)
    if (event.at("name") == "process_name") names[event.at("pid")] = event.at("args").at("name");
  return names;
}

Json end_of(const std::string& output) {
  std::istringstream log(read_file(output + "/log.jsonl"));
  Json last;
  for (std::string line; std::getline(log, line);)
    last = Json::parse(line);
  REQUIRE(last.at("event") == "end");
  return last;
}

const Flags pipelined{{"--pp", "2"},
                      {"--micro-batch", "1"},
                      {"--steps", "5"},
                      {"--save", "never"},
                      {"--resume", "never"}};

}  // namespace

TEST_CASE("the ranks of a pipeline write one trace, on one clock, and a line about its bubble") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  Flags flags = pipelined;
  flags["--trace"] = runs.at("t.json");
  const RanksResult result = runs.run(2, "out", flags);
  result.require_good();
  CHECK_THAT(result.out, Contains("pipeline     1f1b, 2 stages x 4 micro-batches: bubble "));
  CHECK_THAT(result.out, Contains(" % measured; predicted 20.0 % schedule "));
  CHECK_FALSE(std::filesystem::exists(runs.at("t.rank-1.json")));

  const auto events = trace_at(runs.at("t.json"));
  CHECK(names_in(events) == std::map<int, std::string>{{0, "rank 0: stage 0"},
                                                       {1, "rank 1: stage 1"},
                                                       {2, "predicted rank 0: stage 0"},
                                                       {3, "predicted rank 1: stage 1"}});
  // Counts per rank how often each micro-batch goes forward and backward.
  std::map<int, std::map<std::pair<std::string, int>, int>> counts;
  std::map<std::tuple<int, std::string, int>, std::vector<Json>> found;
  for (const Json& event : events) {
    const std::string name = event.at("name");
    if (event.at("ph") != "X" || (name != "forward" && name != "backward")) continue;
    const int rank = event.at("pid"), micro_batch = event.at("args").at("micro_batch");
    CHECK(event.at("args").at("stage") == rank % 2);
    ++counts[rank][{name, micro_batch}];
    found[{rank, name, micro_batch}].push_back(event);
  }
  REQUIRE(counts.size() == 4);
  for (const auto& [rank, of_rank] : counts) {
    CHECK(of_rank.size() == 8);
    for (const auto& [what, count] : of_rank)
      CHECK(count == (rank < 2 ? 5 : 1));
  }
  // A stage begins with what the one before it has finished: the ranks' clocks agree.
  const auto end = [](const Json& event) {
    return event.at("ts").get<double>() + event.at("dur").get<double>();
  };
  for (int micro_batch = 0; micro_batch < 4; ++micro_batch)
    for (std::size_t step = 0; step < 5; ++step) {
      CHECK(end(found[{0, "forward", micro_batch}][step]) <=
            found[{1, "forward", micro_batch}][step].at("ts").get<double>() + 0.2);
      CHECK(end(found[{1, "backward", micro_batch}][step]) <=
            found[{0, "backward", micro_batch}][step].at("ts").get<double>() + 0.2);
    }

  const Json said = end_of(runs.at("out")).at("pipeline");
  CHECK(said.at("schedule") == "1f1b");
  CHECK(said.at("micro_batches") == 4);
  CHECK(said.at("steps") == 3);
  CHECK(said.at("bubble") > 0);
  CHECK(said.at("bubble") < 1);
  const Json& predicted = said.at("predicted_bubble");
  CHECK(predicted.at("schedule").get<double>() == Approx(0.2));
  CHECK(predicted.at("total").get<double>() ==
        Approx(predicted.at("schedule").get<double>() + predicted.at("imbalance").get<double>() +
               predicted.at("messages").get<double>()));
  REQUIRE(said.at("stages").size() == 2);
  for (const Json& stage : said.at("stages")) {
    CHECK(stage.at("forward_ms") > 0);
    CHECK(stage.at("backward_ms") > 0);
  }
}

TEST_CASE("replicas write one trace, and too few steps say nothing of a bubble") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  runs.run_well(2, "dp", {{"--steps", "2"}, {"--save", "never"}, {"--trace", runs.at("dp.json")}});
  const auto events = trace_at(runs.at("dp.json"));
  CHECK(names_in(events) == std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}});
  std::set<int> ranks;
  for (const Json& event : events)
    if (event.at("name") == "reduce") ranks.insert(event.at("pid").get<int>());
  CHECK(ranks == std::set<int>{0, 1});
  CHECK(end_of(runs.at("dp")).at("pipeline").is_null());

  Flags flags = pipelined;
  flags["--steps"] = "2";
  const RanksResult few = runs.run(2, "few", flags);
  few.require_good();
  CHECK_THAT(few.out, !Contains("bubble"));
  CHECK(end_of(runs.at("few")).at("pipeline").is_null());
}

TEST_CASE("a rank of a pipeline takes what was planned, though validation has more under way") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  for (const char* schedule : {"gpipe", "1f1b"}) {
    Flags flags = pipelined;
    flags["--pipeline"] = schedule;
    flags["--batch-size"] = "2";
    flags["--val-data"] = runs.at("t.bin");
    runs.run_well(2, schedule, flags);
    const Json end = end_of(runs.at(schedule));
    CHECK_FALSE(end.at("val_loss").is_null());
    CHECK(end.at("engine_peak_bytes") == end.at("planned_bytes"));
  }
}

}  // namespace sluice::test::pipeline_trace_test
