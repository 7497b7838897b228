#include <cmath>
#include <string>

#include "apps/plan/budgets.h"
#include "tests/support/error_message.h"
#include "tests/support/training/planning.h"

// Tests how many updates a plan lets begin during the backward pass.

namespace sluice::test::speculation_plan_test {
namespace {

/// Bytes per second at which copies take somewhat longer than a forward pass.
constexpr double rate = 3e9;

const std::string shape = small_shape +
                          " --precision bf16 --micro-batch 4 --recompute none"
                          " --state-layout split --gradients fp32 --offload all";

/// Copies at so many bytes a second, and a CPU that updates nothing unless it is told to.
Plan plan_with(double copies, const std::string& wishes, std::size_t host = 1 << 30) {
  const TrainConfig options = parsed(shape + budget(1 << 30, host, true) + wishes);
  DeviceProfile profile = machine(true);
  profile.host_rate = 0;
  profile.to_device_rate = profile.to_host_rate = copies;
  return plan_run(options, resolve_shape(options, true, profile.capability, profile.name), profile)
      .chosen;
}

std::string blocks(std::int64_t number) {
  return " --speculative-blocks " + std::to_string(number);
}

}  // namespace

TEST_CASE("no update begins early unless it is asked for", "[planner]") {
  CHECK(plan_with(rate, "").choice.speculative_blocks == 0);
}

TEST_CASE("as many updates begin early as save most time, and no more", "[planner]") {
  std::int64_t most = 0;
  for (const double copies : {1e7, 5e8, 1e9, 2e9, rate, 1e12}) {
    const Plan chosen = plan_with(copies, " --speculative-blocks auto");
    const std::int64_t number = chosen.choice.speculative_blocks;
    CAPTURE(copies, number, chosen.time.total());
    double best = INFINITY;
    for (int i = 0; i <= 4; ++i)
      best = std::min(best, plan_with(copies, blocks(i)).time.total());
    CHECK(chosen.time.total() <= best / 0.99);
    if (number > 0) CHECK(plan_with(copies, blocks(number - 1)).time.total() > best);
    if (copies == 1e12) CHECK(number == 0);
    most = std::max(most, number);
  }
  CHECK(most > 0);
}

TEST_CASE("what begins early costs a second copy of its state and weights", "[planner]") {
  // A block's four matrices are 12 of 64 x 64; ten bytes of state and two of the weight.
  const std::size_t block = 12 * 64 * 64 * 12;
  const Plan none = plan_with(rate, blocks(0));
  for (int i = 1; i <= 4; ++i) {
    const Plan some = plan_with(rate, blocks(i));
    CHECK(some.choice.speculative_blocks == i);
    CHECK(some.memory.host == none.memory.host + static_cast<std::size_t>(i) * block);
    CHECK(some.memory.pinned == some.memory.host);
  }
  // The count is limited to the blocks available.
  CHECK(plan_with(rate, blocks(99)).choice.speculative_blocks == 4);
}

TEST_CASE("what begins early takes only memory that is left", "[planner]") {
  const std::size_t least = need_of(plan_with(rate, blocks(0)), true).host;
  std::int64_t before = 0;
  for (std::size_t host = least; host < 3 * least; host += least / 7) {
    const Plan chosen = plan_with(rate, " --speculative-blocks auto", host);
    CAPTURE(host, least);
    CHECK(need_of(chosen, true).host <= host);
    CHECK(chosen.choice.speculative_blocks >= before);
    before = chosen.choice.speculative_blocks;
  }
  CHECK(before > 0);
  CHECK(plan_with(rate, " --speculative-blocks auto", least).choice.speculative_blocks == 0);
}

TEST_CASE("no plan takes longer for early updates that may be", "[planner]") {
  int early = 0;
  for (const double copies : {1e9, 2e9, rate, 5e9})
    for (const double host_rate : {0.0, 1e9, 5e9, 2e10, 1e12}) {
      const auto plan_for = [&](const std::string& wishes) {
        const TrainConfig options = parsed(shape + budget(1 << 30, 1 << 30, true) + wishes);
        DeviceProfile profile = machine(true);
        profile.host_rate = host_rate;
        profile.to_device_rate = profile.to_host_rate = copies;
        return plan_run(options, resolve_shape(options, true, profile.capability, profile.name),
                        profile)
            .chosen;
      };
      CAPTURE(copies, host_rate);
      const Plan may = plan_for(" --speculative-blocks auto");
      CHECK(may.time.total() <= plan_for(blocks(0)).time.total() / 0.99);
      early += may.choice.speculative_blocks > 0 ? 1 : 0;
    }
  CHECK(early > 2);
}

TEST_CASE("early updates that may be are no reason to refuse a plan", "[planner]") {
  const auto at = [](const std::string& number, const std::string& device) {
    const TrainConfig options = parsed(
        "--model gpt2-large --seq-len 1024 --batch-size 64 --micro-batch 4 --recompute block "
        "--state-layout split --gradients fp32 --resident-blocks 4 --stream-chunk 4194304 "
        "--staging-chunks 4 --cpu-blocks 0 --head-chunk 1024 --host-memory 64GiB "
        "--speculative-blocks " +
        number + " --gpu-memory " + device);
    const DeviceProfile profile = known_profile("3090");
    return plan_run(options, resolve_shape(options, true, profile.capability, profile.name),
                    profile)
        .chosen;
  };
  const Plan roomy = at("auto", "11GiB");
  CHECK(roomy.choice.speculative_blocks > 0);
  // The memory of the fixed flags without speculative updates, which need a few bytes more.
  const std::size_t reserve = budgets_of({}, {}, known_profile("3090")).device_reserve;
  const std::string least = std::to_string(at("0", "11GiB").memory.high_water + reserve);
  CHECK_THAT(error_message([&] { at("19", least); }), Contains("too many"));
  CHECK(at("auto", least).choice.speculative_blocks == 0);
}

TEST_CASE("early updates that must be are in the plan, or it is refused", "[planner]") {
  const std::size_t least = need_of(plan_with(rate, blocks(0)), true).host;
  const auto with_cpu = [](const std::string& wishes, std::size_t host) {
    const TrainConfig options = parsed(shape + budget(1 << 30, host, true) + wishes);
    DeviceProfile profile = machine(true);
    profile.host_rate = 1e12;
    profile.to_device_rate = profile.to_host_rate = rate / 10;
    return plan_run(options, resolve_shape(options, true, profile.capability, profile.name),
                    profile)
        .chosen;
  };
  CHECK(with_cpu(blocks(0), 1 << 30).choice.cpu_blocks == 4);
  for (int i = 1; i <= 4; ++i) {
    const Plan some = with_cpu(blocks(i), 1 << 30);
    CHECK(some.choice.speculative_blocks == i);
    CHECK(some.choice.cpu_blocks <= 4 - i);
    CHECK_THAT(error_message([&] { with_cpu(blocks(i), least); }),
               Contains("--speculative-blocks " + std::to_string(i)));
  }
}

TEST_CASE("a plan with early updates is counted, and found again by its flags", "[planner]") {
  for (const std::string wishes : {" --speculative-blocks auto", " --speculative-blocks 3",
                                   " --cpu-blocks 2 --speculative-blocks 1"}) {
    const Plan chosen = plan_with(rate, wishes);
    CAPTURE(to_flags(chosen.choice));
    REQUIRE(chosen.choice.speculative_blocks > 0);
    CHECK(same(plan_with(rate, " " + to_flags(chosen.choice)), chosen));
    const MemoryBytes need = need_of(chosen, true);
    const auto at = [&](std::size_t host) {
      return error_message([&] { plan_with(rate, " " + to_flags(chosen.choice), host); });
    };
    CHECK(at(need.host) == "(no error)");
    CHECK_THAT(at(need.host - 1), Contains(" 1 too many"));
  }
}

}  // namespace sluice::test::speculation_plan_test
