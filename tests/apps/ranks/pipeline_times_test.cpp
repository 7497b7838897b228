#include <nlohmann/json.hpp>

#include "apps/trace/pipeline_times.h"
#include "apps/train_gpt2/run_times.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/temp_dir.h"

// Tests the evaluation of the ranks' recorded spans with artificial spans whose answers are known.

namespace sluice::test::pipeline_times_test {
namespace {

/// The spans that ranks would record if each action took its cost; `replica` after `replica`.
std::vector<RankSpan> spans_of(const Schedule& schedule, const std::vector<StageCosts>& costs,
                               int replica = 0, double at = 0) {
  const Simulation simulation = simulate(schedule, costs);
  std::vector<RankSpan> spans;
  const auto ranks = static_cast<int>(schedule.ranks.size());
  for (int rank = 0; rank < ranks; ++rank) {
    double free = 0;
    const int number = replica * ranks + rank;
    for (const auto& [action, start, end] : simulation.ranks[static_cast<std::size_t>(rank)]) {
      const Timeline::Label label{action.stage, action.micro_batch};
      if (start > free) spans.emplace_back("wait", number, at + free, start - free, label);
      spans.emplace_back(span_name(action.kind), number, at + start, end - start, label);
      free = end;
    }
  }
  return spans;
}

}  // namespace

TEST_CASE("the bubble of made-up spans is what two ranks wait") {
  const Schedule schedule = gpipe(2, 1);
  PipelineTimes times(schedule, false);
  // Rank 0 computes 1 + 3 of 10 milliseconds, rank 1 2 + 2; what has no stage does not count.
  times.add(std::vector<RankSpan>{
      {"forward", 0, 100, 1, {0, 0}},
      {"wait", 0, 101, 6, {0, 0}},
      {"backward", 0, 107, 3, {0, 0}},
      {"update", 0, 110, 50},
      {"wait", 1, 90, 12.5, {1, 0}},
      {"forward", 1, 102.5, 2, {1, 0}},
      {"backward", 1, 104.5, 2, {1, 0}},
      {"wait", 1, 107, 30},
  });
  CHECK(times.steps() == 1);
  CHECK(times.bubble() == Approx(1 - 8.0 / 20));
  const auto costs = times.costs();
  CHECK(costs[0].forward == Approx(1));
  CHECK(costs[0].backward == Approx(3));
  CHECK(costs[1].forward == Approx(2));
  CHECK(costs[1].backward == Approx(2));
  CHECK(costs[0].send == Approx(1.5));  // from 101 to 102.5
  CHECK(costs[1].send == Approx(0.5));  // from 106.5 to 107
  // Nothing but these costs, so the prediction is what was measured.
  const BubbleSplit split = times.predicted();
  CHECK(split.schedule == Approx(0.5));
  CHECK(split.schedule + split.imbalance + split.communication == Approx(times.bubble()));
}

TEST_CASE("a simulation's spans give back its costs and its bubble, whatever the schedule") {
  for (const Schedule& schedule : {layer_split(3, 4), gpipe(4, 6), one_forward_one_backward(4, 9),
                                   interleaved(2, 2, 6), zero_bubble_h1(4, 9)}) {
    const bool split = splits_backward(schedule);
    std::vector<StageCosts> costs;
    for (int stage = 0; stage < schedule.stages; ++stage)
      costs.push_back({.forward = 1 + 0.1 * stage,
                       .backward = 2.5 - 0.2 * stage,
                       .send = 0,
                       .weights = split ? 1.1 - 0.1 * stage : 0});
    PipelineTimes times(schedule, false);
    auto spans = spans_of(schedule, costs);
    const auto more = spans_of(schedule, costs, 1, 5);  // another replica, later
    spans.insert(spans.end(), more.begin(), more.end());
    times.add(spans);
    times.add(spans);
    CHECK(times.steps() == 2);
    CHECK(times.bubble() == Approx(simulate(schedule, costs).bubble()));
    const auto found = times.costs();
    for (std::size_t stage = 0; stage < costs.size(); ++stage) {
      CHECK(found[stage].forward == Approx(costs[stage].forward));
      CHECK(found[stage].backward == Approx(costs[stage].backward));
      CHECK(found[stage].weights == Approx(costs[stage].weights));
      CHECK(found[stage].send == Approx(0).margin(1e-9));
    }
  }
}

TEST_CASE("what is computed again counts as backward") {
  PipelineTimes times(gpipe(2, 1), true);
  times.add(std::vector<RankSpan>{
      {"forward", 0, 0, 1, {0, 0}},
      {"wait", 0, 1, 4, {0, 0}},
      {"forward", 0, 5, 1, {0, 0}},
      {"backward", 0, 6, 2, {0, 0}},
      {"wait", 1, 0, 1.5, {1, 0}},
      {"forward", 1, 1.5, 1, {1, 0}},  // the last stage computes it once
      {"backward", 1, 2.5, 2, {1, 0}},
  });
  const auto costs = times.costs();
  CHECK(costs[0].forward == Approx(1));
  CHECK(costs[0].backward == Approx(3));
  CHECK(costs[1].forward == 0);
  CHECK(costs[1].backward == Approx(3));
  CHECK(costs[0].send == Approx(0.5));
  CHECK(costs[1].send == Approx(0.5));
  CHECK(times.bubble() == Approx(1 - 7.0 / 16));
}

TEST_CASE("a line says what was measured and what was predicted, with signs") {
  CHECK(spell_bubble(0.132, {.schedule = 0.111, .imbalance = 0.014, .communication = 0.002}) ==
        "13.2 % measured; predicted 11.1 % schedule + 1.4 % imbalance + 0.2 % messages");
  CHECK(spell_bubble(0.1, {.schedule = 0.111, .imbalance = -0.02, .communication = -1e-9}) ==
        "10.0 % measured; predicted 11.1 % schedule - 2.0 % imbalance + 0.0 % messages");
}

TEST_CASE("a trace has a process for each rank and is whole after every call") {
  const TempDir folder;
  const auto file = folder.path() / "t.json";
  TraceFile trace(file);
  trace.name(0, "rank 0");
  trace.name(1, "rank 1: stages 1, 3");
  trace.write(std::vector<RankSpan>{{"forward", 1, 2, 0.5, {3, 7}}, {"update", 0, 4, 1}});
  std::string text = read_file(file);
  REQUIRE(text.ends_with(",\n"));
  text.resize(text.size() - 2);
  const auto events = nlohmann::json::parse(text + "]");
  std::vector<nlohmann::json> names, spans;
  for (const auto& event : events) {
    if (event.at("name") == "process_name") names.push_back(event);
    if (event.at("ph") == "X") spans.push_back(event);
  }
  REQUIRE(names.size() == 2);
  CHECK(names[1].at("pid") == 1);
  CHECK(names[1].at("args").at("name") == "rank 1: stages 1, 3");
  REQUIRE(spans.size() == 2);
  CHECK(spans[0].at("pid") == 1);
  CHECK(spans[0].at("ts") == 2000);
  CHECK(spans[0].at("dur") == 500);
  CHECK(spans[0].at("args").at("stage") == 3);
  CHECK(spans[0].at("args").at("micro_batch") == 7);
  CHECK_FALSE(spans[1].contains("args"));
}

TEST_CASE("the name of a span is cut off, never run over") {
  const RankSpan span("a name of many letters", 0, 0, 1);
  CHECK(span.name() == "a name of many ");
}

}  // namespace sluice::test::pipeline_times_test
