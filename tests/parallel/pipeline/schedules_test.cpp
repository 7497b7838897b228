#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <set>
#include <utility>

#include "parallel/pipeline/simulator.h"
#include "parallel/pipeline/validator.h"
#include "tests/parallel/pipeline/all_schedules.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"

namespace sluice::test::schedules_test {
namespace {

using Kind = Action::Kind;
using Clock = std::set<std::pair<int, int>>;

const std::vector<int> counts_of_micro_batches{1,  2,  3,  4,  5,  6,  7,   8,  9,
                                               10, 11, 12, 13, 14, 15, 16,  17, 18,
                                               19, 20, 31, 32, 33, 64, 127, 128};

std::vector<int> live(const Schedule& schedule) {
  return validate(lower(schedule)).live;
}

TEST_CASE("the forwards of gpipe go by clock cycles", "[pipeline]") {
  using Size = std::pair<int, int>;
  for (const auto& [micro_batches, ranks] : {Size{6, 2}, Size{3, 3}, Size{1, 4}, Size{8, 3}}) {
    std::vector<Clock> clocks;
    const Schedule schedule = gpipe(ranks, micro_batches);
    const auto size = static_cast<std::size_t>(ranks);
    const auto run = simulate(schedule, std::vector<StageCosts>(size));
    REQUIRE(run.ranks.size() == size);
    for (const auto& spans : run.ranks)
      for (const auto& span : spans) {
        if (span.action.kind != Kind::forward) continue;
        const auto clock = static_cast<std::size_t>(span.start);
        clocks.resize(std::max(clocks.size(), clock + 1));
        CHECK(clocks[clock].insert({span.action.micro_batch, span.action.stage}).second);
      }
    std::vector<Clock> wanted(static_cast<std::size_t>(micro_batches + ranks - 1));
    for (int i = 0; i < micro_batches; ++i)
      for (int j = 0; j < ranks; ++j)
        wanted[static_cast<std::size_t>(i + j)].insert({i, j});
    CHECK(clocks == wanted);
  }
}

TEST_CASE("small schedules are those of the papers", "[pipeline]") {
  CHECK(rows_of(layer_split(2, 2)) == "0F0,0B0,0F1,0B1|1F0,1B0,1F1,1B1|");
  CHECK(rows_of(one_forward_one_backward(2, 3)) ==
        "0F0,0F1,0B0,0F2,0B1,0B2|1F0,1B0,1F1,1B1,1F2,1B2|");
  CHECK(rows_of(interleaved(2, 2, 2)) ==
        "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1|1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1|");
  CHECK(rows_of(interleaved(2, 2, 3)) ==
        "0F0,0F1,2F0,2F1,0F2,2B0,2B1,2F2,0B0,0B1,2B2,0B2|"
        "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1B1,3F2,3B2,1B2|");
  CHECK(rows_of(interleaved(1, 2, 2)) == "0F0,1F0,1B0,0F1,0B0,1F1,1B1,0B1|");
  CHECK(interleaved(4, 1, 9) == one_forward_one_backward(4, 9));
  CHECK(rows_of(zero_bubble_h1(2, 3)) ==
        "0F0,0F1,0B0,0W0,0F2,0B1,0W1,0B2,0W2|1F0,1B0,1F1,1B1,1W0,1F2,1B2,1W1,1W2|");
  CHECK(rows_of(layer_major(2, 2)) == "0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1|");
  CHECK(rows_of(zero_bubble_h1(1, 2)) == "0F0,0B0,0W0,0F1,0B1,0W1|");
}

TEST_CASE("messages are sent at once and received one action ahead", "[pipeline]") {
  CHECK(rows_of(lower(one_forward_one_backward(2, 2))) ==
        "0F0,0RECV_B0,0SEND_F0,0F1,0RECV_B1,0SEND_F1,0B0,0B1|"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1|");
  CHECK(lower(interleaved(1, 3, 2)) == interleaved(1, 3, 2));
  const Schedule lowered = lower(gpipe(2, 1));
  CHECK(has_messages(lowered));
  CHECK_FALSE(has_messages(gpipe(2, 1)));
  CHECK(error_message([&] { lower(lowered); }) ==
        "a schedule that sends and receives is lowered already");
}

TEST_CASE("schedules of all sizes run and are complete", "[pipeline]") {
  int wrong = 0, made = 0;
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (const int micro_batches : counts_of_micro_batches)
      for (const auto& [name, schedule] : all_schedules(ranks, micro_batches)) {
        ++made;
        INFO(name << " of " << ranks << " ranks and " << micro_batches << " micro-batches");
        const std::string message = error_message([&] { validate(lower(schedule)); });
        if (message != "(no error)") FAIL_CHECK(message);
        REQUIRE(schedule.ranks.size() == static_cast<std::size_t>(ranks));
        REQUIRE(schedule.micro_batches == micro_batches);
        // Counted again here, so that this does not rest on the validator.
        std::size_t actions = 0;
        const int kinds = name == "zb-h1" ? 3 : 2;
        std::vector<int> next(3 * static_cast<std::size_t>(schedule.stages));
        for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
          for (const Action& action : schedule.ranks[rank]) {
            ++actions;
            auto& expected = next[static_cast<std::size_t>(3 * action.stage) +
                                  (action.kind == Kind::forward    ? 0
                                   : action.kind == Kind::backward ? 1
                                                                   : 2)];
            if (action.micro_batch != expected++) ++wrong;
            if (action.stage % ranks != static_cast<int>(rank)) ++wrong;
          }
        if (actions != static_cast<std::size_t>(kinds * schedule.stages * micro_batches)) ++wrong;
      }
  CHECK(wrong == 0);
  CHECK(made == (16 * 8 + 1) * 26);
}

TEST_CASE("what a schedule holds for backward", "[pipeline]") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const int micro_batches : counts_of_micro_batches) {
      const auto size = static_cast<std::size_t>(ranks);
      std::vector<int> fewest(size);
      for (int rank = 0; rank < ranks; ++rank)
        fewest[static_cast<std::size_t>(rank)] = std::min(micro_batches, ranks - rank);
      CHECK(live(layer_split(ranks, micro_batches)) == std::vector<int>(size, 1));
      CHECK(live(gpipe(ranks, micro_batches)) == std::vector<int>(size, micro_batches));
      CHECK(live(one_forward_one_backward(ranks, micro_batches)) == fewest);
      const ScheduleFacts split = validate(lower(zero_bubble_h1(ranks, micro_batches)));
      CHECK(split.live == std::vector<int>(size, std::min(micro_batches, ranks)));
      CHECK(split.inputs == fewest);
    }
  for (const int micro_batches : {12, 1000, 4000}) {  // not more with more
    CHECK(live(interleaved(4, 2, micro_batches)) == std::vector<int>{11, 9, 7, 5});
    CHECK(live(interleaved(4, 3, micro_batches)) == std::vector<int>{15, 13, 11, 9});
  }
  for (const int micro_batches : {999, 1001, 1002}) {  // nor with a last group that is smaller
    const auto held = live(interleaved(4, 2, micro_batches));
    CHECK(held == std::vector<int>{11, 9, 7, 5});
  }
}

TEST_CASE("memory for what is received does not grow", "[pipeline]") {
  for (const auto& [name, schedule] : all_schedules(4, 64))
    for (const int held : validate(lower(schedule)).received) {
      INFO(name);
      CHECK(held >= 1);
      CHECK(held <= 2);
    }
  CHECK(validate(lower(gpipe(1, 5))).received == std::vector<int>{0});
}

TEST_CASE("long schedules are validated", "[pipeline]") {
  for (const int ranks : {4, 16})
    for (const int micro_batches : {1000, 4000}) {
      CHECK(live(gpipe(ranks, micro_batches)).front() == micro_batches);
      CHECK(live(one_forward_one_backward(ranks, micro_batches)).front() == ranks);
      CHECK(live(interleaved(ranks, 2, micro_batches)).front() == 3 * ranks - 1);
    }
}

TEST_CASE("where the stages of a schedule are", "[pipeline]") {
  CHECK(rank_of_stage(interleaved(2, 2, 1)) == std::vector<int>{0, 1, 0, 1});
  CHECK(rank_of_stage({.ranks = {{{Kind::forward, 0, 0}}, {{Kind::backward, 0, 0}}}}) ==
        std::vector<int>{0});
  Schedule odd{.stages = 3, .ranks = {{{Kind::forward, 2, 0}}, {{Kind::forward, 7, 0}}}};
  CHECK(rank_of_stage(odd) == std::vector<int>{-1, -1, 0});
  CHECK(lower(odd) == odd);
}

TEST_CASE("schedules of impossible sizes are refused", "[pipeline]") {
  for (const int bad : {0, -1, 5000}) {
    const auto number = std::to_string(bad);
    CHECK(error_message([&] { layer_split(bad, 1); }) ==
          "a pipeline has 1 to 4096 ranks, not " + number);
    CHECK(error_message([&] { gpipe(bad, 1); }).find("ranks, not " + number) != std::string::npos);
    CHECK(error_message([&] { interleaved(bad, 2, 1); }).find("ranks") != std::string::npos);
  }
  for (const int bad : {0, -3, 65537}) {
    const auto number = std::to_string(bad);
    CHECK(error_message([&] { one_forward_one_backward(2, bad); }) ==
          "a pipeline has 1 to 65536 micro-batches, not " + number);
    CHECK(error_message([&] { interleaved(2, 2, bad); }).find("micro-batches, not " + number) !=
          std::string::npos);
    CHECK(error_message([&] { interleaved(4, bad, 4); }) ==
          "a pipeline has 1 to 16384 virtual stages a rank, not " + number);
  }
  CHECK(error_message([] { interleaved(1024, 64, 1000); }) ==
        "a schedule has 16777216 forwards at most, not 65536 stages times 1000 micro-batches");
  try {
    gpipe(0, 1);
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
  }
}

}  // namespace
}  // namespace sluice::test::schedules_test
