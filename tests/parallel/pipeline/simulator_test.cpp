#include "parallel/pipeline/simulator.h"

#include <array>
#include <cstdlib>
#include <limits>

#include "parallel/pipeline/schedule_text.h"
#include "tests/parallel/pipeline/all_schedules.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"

namespace sluice::test::simulator_test {
namespace {

std::vector<StageCosts> equal(const Schedule& schedule, StageCosts costs = {}) {
  return std::vector<StageCosts>(static_cast<std::size_t>(schedule.stages), costs);
}
double bubble(const Schedule& schedule) {
  return simulate(schedule, equal(schedule)).bubble();
}

/// `waiting` in units of what one micro-batch costs on a rank.
double formula(double waiting, int micro_batches) {
  return waiting / (micro_batches + waiting);
}

bool near(double value, double wanted) {
  return std::abs(value - wanted) <= 1e-12 * wanted;
}

TEST_CASE("bubbles are those of the papers", "[pipeline]") {
  int wrong = 0, whole = 0, smaller = 0;
  double largest = 0;
  for (int ranks = 2; ranks <= 16; ++ranks)
    for (int micro_batches = 1; micro_batches <= 128; ++micro_batches) {
      const double wanted = formula(ranks - 1, micro_batches);
      if (!near(bubble(gpipe(ranks, micro_batches)), wanted)) ++wrong;
      if (!near(bubble(one_forward_one_backward(ranks, micro_batches)), wanted)) ++wrong;
      if (!near(bubble(layer_split(ranks, micro_batches)), (ranks - 1.0) / ranks)) ++wrong;
      // A third of it, from as many micro-batches as ranks on.
      const double less = std::max(ranks - 1, 2 * ranks - 1 - micro_batches) / 3.0;
      if (!near(bubble(zero_bubble_h1(ranks, micro_batches)), formula(less, micro_batches)))
        ++wrong;
      for (int v = 2; v <= 4; ++v) {
        const double found = bubble(interleaved(ranks, v, micro_batches));
        const double least = formula((ranks - 1.0) / v, micro_batches);
        if (micro_batches % ranks == 0) {
          ++whole;
          if (!near(found, least)) ++wrong;
        } else {
          if (found < least * (1 - 1e-12)) ++smaller;
          largest = std::max(largest, found / least);
        }
      }
    }
  CHECK(wrong == 0);
  CHECK(whole == 3 * (64 + 42 + 32 + 25 + 21 + 18 + 16 + 14 + 12 + 11 + 10 + 9 + 9 + 8 + 8));
  CHECK(smaller == 0);
  CHECK(largest == Approx(3.14).margin(0.005));  // what simulator.h says
}

TEST_CASE("zb-h1 fills its gaps with weight gradients", "[pipeline]") {
  for (const auto& [forward, inputs, weights] :
       {std::array{1.0, 1.0, 1.0}, {1.0, 1.2, 0.8}, {1.0, 2.0, 0.5}, {0.5, 1.0, 0.0}})
    for (const int ranks : {2, 4, 7})
      for (const int micro_batches : {7, 8, 64}) {
        CAPTURE(forward, inputs, weights, ranks, micro_batches);
        const std::vector<StageCosts> costs(
            static_cast<std::size_t>(ranks),
            {.forward = forward, .backward = inputs + weights, .weights = weights});
        const Simulation split = simulate(zero_bubble_h1(ranks, micro_batches), costs);
        const double all = micro_batches * (forward + inputs + weights);
        CHECK(split.makespan == Approx(all + (ranks - 1) * (forward + inputs - weights)));
        const Simulation whole = simulate(one_forward_one_backward(ranks, micro_batches), costs);
        CHECK(whole.makespan == Approx(all + (ranks - 1) * (forward + inputs + weights)));
        for (const double busy : split.busy)
          CHECK(busy == Approx(all));
      }
  // Weight gradients that cost more than a gap make others wait, but no longer than 1F1B does.
  for (const auto& [forward, inputs, weights] : {std::array{0.1, 0.5, 0.5}, {1.0, 0.5, 0.8}}) {
    const std::vector<StageCosts> costs(
        4, {.forward = forward, .backward = inputs + weights, .weights = weights});
    const double split = simulate(zero_bubble_h1(4, 8), costs).makespan;
    CHECK(split > 8 * (forward + inputs + weights) + 3 * (forward + inputs - weights) + 0.05);
    CHECK(split < simulate(one_forward_one_backward(4, 8), costs).makespan);
  }
  CHECK_THAT(
      error_message([] { simulate(zero_bubble_h1(1, 1), {{.backward = 1, .weights = 1.5}}); }),
      Contains("1.5 seconds of a backward that costs 1"));
}

TEST_CASE("spans are in order and say how long a rank computes", "[pipeline]") {
  const Schedule schedule = one_forward_one_backward(2, 2);
  const std::vector<StageCosts> costs{{.forward = 1, .backward = 2, .send = 0.5},
                                      {.forward = 3, .backward = 4, .send = 0.25}};
  const Simulation run = simulate(lower(schedule), costs);
  using Times = std::vector<std::pair<double, double>>;
  const std::vector<Times> wanted{{{0, 1}, {1, 2}, {8.75, 10.75}, {15.75, 17.75}},
                                  {{1.5, 4.5}, {4.5, 8.5}, {8.5, 11.5}, {11.5, 15.5}}};
  REQUIRE(run.ranks.size() == 2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    Times times;
    for (std::size_t i = 0; i < run.ranks[rank].size(); ++i) {
      CHECK(run.ranks[rank][i].action == schedule.ranks[rank][i]);
      times.emplace_back(run.ranks[rank][i].start, run.ranks[rank][i].end);
    }
    CHECK(times == wanted[rank]);
  }
  CHECK(run.makespan == 17.75);
  CHECK(run.busy == std::vector<double>{6, 14});
  CHECK(run.bubble(0) == Approx(11.75 / 17.75));
  CHECK(run.bubble(1) == Approx(3.75 / 17.75));
  CHECK(run.bubble() == Approx(15.5 / 35.5));
}

TEST_CASE("messages between stages of one rank take no time", "[pipeline]") {
  const Schedule alone = interleaved(1, 3, 2);
  CHECK(simulate(alone, equal(alone, {.send = 100})).makespan == 3 * 2 * 3);
  CHECK(simulate(alone, equal(alone, {.send = 100})).bubble() == 0);
  CHECK(simulate(alone, equal(alone, {.forward = 0, .backward = 0})).bubble() == 0);
}

TEST_CASE("messages of a schedule make no difference", "[pipeline]") {
  for (const auto& [name, schedule] : all_schedules(4, 6)) {
    const auto costs = equal(schedule, {.send = 0.5});
    INFO(name);
    CHECK(simulate(schedule, costs).makespan == simulate(lower(schedule), costs).makespan);
  }
}

TEST_CASE("a bubble is split into its reasons", "[pipeline]") {
  const Schedule schedule = lower(one_forward_one_backward(4, 8));
  const double order = formula(3, 8);
  const auto none = split_bubble(schedule, equal(schedule));
  CHECK(near(none.schedule, order));
  CHECK(none.imbalance == 0);
  CHECK(none.communication == 0);

  auto costs = equal(schedule);
  costs[2] = {.forward = 2, .backward = 4};  // begins at 2, waits 1, ends 4 before the end
  const auto slow = split_bubble(schedule, costs);
  CHECK(near(slow.schedule, order));
  CHECK(slow.imbalance == Approx(1 - 8 * (3 * 3 + 6) / (4 * (2 + 8 * 6 + 1 + 4.0)) - order));
  CHECK(slow.communication == 0);

  for (StageCosts& cost : costs)
    cost.send = 0.125;
  const auto all = split_bubble(schedule, costs);
  CHECK(all.schedule == slow.schedule);
  CHECK(all.imbalance == slow.imbalance);
  CHECK(all.communication > 0);
  CHECK(all.schedule + all.imbalance + all.communication ==
        Approx(simulate(schedule, costs).bubble()));

  const auto far = split_bubble(lower(gpipe(2, 1)), {{.send = 1}, {.send = 2}});
  CHECK(near(far.schedule, 0.5));
  CHECK(far.imbalance == 0);
  CHECK(near(far.communication, 1.0 / 6));  // 6 of 18 rank seconds instead of 6 of 12
}

TEST_CASE("what cannot be simulated is refused", "[pipeline]") {
  const Schedule schedule = gpipe(2, 2);
  const auto message = [](const Schedule& bad, const std::vector<StageCosts>& costs) {
    return error_message([&] { simulate(bad, costs); });
  };
  CHECK(message(schedule, {{}}) == "2 stages have 1 costs");
  for (const double bad :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK(message(schedule, {{}, {.forward = bad}}).find("0 seconds or more") != std::string::npos);
    CHECK(message(schedule, {{}, {.backward = bad}}).find("0 seconds") != std::string::npos);
    CHECK(message(schedule, {{}, {.send = bad}}).find("0 seconds") != std::string::npos);
  }
  CHECK(message(schedule_from_csv("0F0,0B0,0F1\n"), {{}}) ==
        "1 stages and 2 micro-batches have 4 forwards and backwards, not 3");
  CHECK(message(schedule_from_csv("65535B65535\n"), std::vector<StageCosts>(65536))
            .find("have 8589934592 forwards and backwards, not 1") != std::string::npos);
  CHECK(message(schedule_from_csv("0B0,0F0\n"), {{}}) ==
        "the schedule cannot run: rank 0 never comes to 0B0");
  CHECK(message(schedule_from_csv("0B0,0F0\n1F0,1B0\n"), {{}, {}}) ==
        "the schedule cannot run: rank 0 never comes to 0B0");
  Schedule outside = gpipe(1, 1);
  outside.ranks[0][0].stage = 1;
  CHECK(message(outside, {{}}) == "1F0 is outside of 1 stages and 1 micro-batches");
}

}  // namespace
}  // namespace sluice::test::simulator_test
