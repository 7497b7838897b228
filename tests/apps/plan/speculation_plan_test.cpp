#include <string>

#include "tests/support/error_message.h"
#include "tests/support/training/planning.h"

// Tests plans in which updates begin during the backward pass.

namespace sluice::test::speculation_plan_test {
namespace {

/// Bytes per second at which copies take somewhat longer than a forward pass.
constexpr double rate = 3e9;

const std::string shape = small_shape +
                          " --precision bf16 --micro-batch 4 --state-layout split"
                          " --gradients fp32 ";

Plan plan_with(const std::string& wishes, std::size_t host = 1 << 30) {
  const TrainConfig options = parsed(shape + budget(1 << 30, host, true) + wishes);
  DeviceProfile profile = machine(true);
  profile.to_device_rate = profile.to_host_rate = rate;
  return plan_run(options, resolve_shape(options, true, profile.capability, profile.name), profile)
      .chosen;
}

/// The highest of four blocks are updated early.
std::string blocks(std::int64_t number) {
  const std::string state = "offload-state:none", early = "speculative:none";
  return " --placement " + (number == 0   ? state
                            : number == 4 ? early
                                          : state + "*" + std::to_string(4 - number) + "," + early);
}

std::int64_t early(const Plan& plan) {
  return plan.choice.count(Residency::speculative);
}

}  // namespace

TEST_CASE("no update begins early unless it is asked for", "[planner]") {
  CHECK(early(plan_with("")) == 0);
}

TEST_CASE("what begins early costs a second copy of its state and weights", "[planner]") {
  // A block's four matrices are 12 of 64 x 64; ten bytes of state and two of the weight.
  const std::size_t block = 12 * 64 * 64 * 12;
  const Plan none = plan_with(blocks(0));
  for (int i = 1; i <= 4; ++i) {
    const Plan some = plan_with(blocks(i));
    CHECK(early(some) == i);
    CHECK(some.memory.host == none.memory.host + static_cast<std::size_t>(i) * block);
    CHECK(some.memory.pinned == some.memory.host);
  }
}

TEST_CASE("early updates that must be are in the plan, or it is refused", "[planner]") {
  const std::size_t least = need_of(plan_with(blocks(0)), true).host;
  for (int i = 1; i <= 4; ++i)
    CHECK_THAT(error_message([&] { plan_with(blocks(i), least); }), Contains("speculative"));
}

TEST_CASE("a plan with early updates is counted, and found again by its flags", "[planner]") {
  for (const std::string places : {"speculative", "resident*1,speculative",
                                   "offload-state*1,speculative*1,offload-optimizer"}) {
    const Plan chosen = plan_with(" --placement " + places);
    CAPTURE(to_flags(chosen.choice));
    REQUIRE(early(chosen) > 0);
    CHECK(same(plan_with(" " + to_flags(chosen.choice)), chosen));
    const MemoryBytes need = need_of(chosen, true);
    const auto at = [&](std::size_t host) {
      return error_message([&] { plan_with(" " + to_flags(chosen.choice), host); });
    };
    CHECK(at(need.host) == "(no error)");
    CHECK_THAT(at(need.host - 1), Contains(" 1 too many"));
  }
}

}  // namespace sluice::test::speculation_plan_test
