#include <cmath>
#include <optional>

#include "tests/support/error_message.h"
#include "tests/support/training/planning.h"

// Tests how many of the updates a plan assigns to the CPU.

namespace sluice::test::cpu_share_plan_test {
namespace {

const std::string shape = small_shape +
                          " --precision bf16 --micro-batch 4 --recompute none"
                          " --state-layout split --gradients fp32";

Plan plan_anywhere(double host_rate, const std::string& wishes) {
  const TrainConfig options = parsed(shape + wishes);
  DeviceProfile profile = machine(true);
  profile.host_rate = host_rate;
  // Slow enough that copies are waited for.
  profile.to_device_rate = profile.to_host_rate = 2e8;
  return plan_run(options, resolve_shape(options, true, profile.capability, profile.name), profile)
      .chosen;
}

/// All state rests on the host, and there is room for everything.
Plan plan_with(double host_rate, const std::string& wishes = "") {
  return plan_anywhere(host_rate, " --offload all" + budget(1 << 30, 1 << 30, true) + wishes);
}

}  // namespace

TEST_CASE("the CPU takes the share of the updates that saves most time", "[planner]") {
  double before = INFINITY;
  std::int64_t blocks = 0;
  for (const double rate : {0.0, 1e6, 1e8, 5e8, 2e9, 1e10, 1e12}) {
    const Plan chosen = plan_with(rate);
    CAPTURE(rate, chosen.choice.cpu_blocks, chosen.time.total());
    double best = INFINITY;
    for (int cpu = 0; cpu <= (rate > 0 ? 4 : 0); ++cpu)
      best = std::min(best, plan_with(rate, " --cpu-blocks " + std::to_string(cpu)).time.total());
    CHECK(chosen.time.total() <= best / 0.98);
    // A faster CPU is given no less, and no step takes longer for it.
    CHECK(chosen.choice.cpu_blocks >= blocks);
    CHECK(chosen.time.total() <= before);
    if (rate <= 1e6) CHECK(chosen.choice.cpu_blocks == 0);
    blocks = chosen.choice.cpu_blocks;
    before = chosen.time.total();
  }
  CHECK(blocks == 4);
}

TEST_CASE("what a slow CPU's updates take is what they read and write", "[planner]") {
  // Four blocks of 12 matrices' worth of 64 x 64 and 13 vectors; remainder and two moments are read
  // and written, the gradient and the weight read, the weight written.
  const double bytes = 4 * (12 * 64 * 64 * (2 * 10.0 + 4 + 2 + 2));
  const double slow = plan_with(1e6, " --cpu-blocks 4").time.total();
  const double half = plan_with(2e6, " --cpu-blocks 4").time.total();
  CHECK(slow - half == Approx(bytes / 2e6).epsilon(0.02));
}

TEST_CASE("a plan without a share of the CPU's is not missed for one with it", "[planner]") {
  const std::string none = " --cpu-blocks 0";
  const auto fitting = [](double rate, const std::string& wishes) -> std::optional<Plan> {
    try {
      return plan_anywhere(rate, wishes);
    } catch (const Error&) {
      return {};
    }
  };
  const MemoryBytes most = need_of(*fitting(0, none + budget(1 << 30, 1 << 30, true)), true);
  int compared = 0, shared = 0, only_shared = 0;
  for (const double rate : {1e6, 2e9, 1e12})
    for (int percent = 100; percent > 40; percent -= by_form(4, 1)) {
      const std::size_t device = most.device * static_cast<std::size_t>(percent) / 100;
      CAPTURE(rate, percent);
      const auto roomy = fitting(rate, budget(device, 1 << 30, true));
      const auto alone = fitting(rate, none + budget(device, 1 << 30, true));
      if (!alone) {
        only_shared += roomy ? 1 : 0;
        continue;
      }
      ++compared;
      REQUIRE(roomy);
      CHECK(roomy->time.total() <= alone->time.total() / 0.98);
      if (rate <= 1e6) CHECK(roomy->choice.cpu_blocks == 0);
      shared += roomy->choice.cpu_blocks > 0 ? 1 : 0;
      // No byte of the host is left for staging buffers.
      CHECK(fitting(rate, budget(device, need_of(*alone, true).host, true)));
    }
  CHECK(compared > by_form(12, 50));
  CHECK(shared > by_form(5, 20));
  CHECK(only_shared > 0);
}

TEST_CASE("a share of the CPU's is counted, and found again by its flags", "[planner]") {
  for (const std::string wishes : {"", " --cpu-blocks 1", " --cpu-blocks 4"}) {
    const Plan chosen = plan_with(2e9, wishes);
    CAPTURE(to_flags(chosen.choice));
    REQUIRE(chosen.choice.cpu_blocks > 0);
    CHECK(chosen.memory.pinned < chosen.memory.host);
    CHECK(same(plan_with(2e9, " " + to_flags(chosen.choice)), chosen));
    const MemoryBytes need = need_of(chosen, true);
    const auto at = [&](std::size_t device, std::size_t host) {
      return error_message(
          [&] { plan_with(2e9, " " + to_flags(chosen.choice) + budget(device, host, true)); });
    };
    CHECK(at(need.device, need.host) == "(no error)");
    CHECK_THAT(at(need.device - 1, need.host), Contains(" 1 too many"));
    CHECK_THAT(at(need.device, need.host - 1), Contains(" 1 too many"));
  }
}

}  // namespace sluice::test::cpu_share_plan_test
