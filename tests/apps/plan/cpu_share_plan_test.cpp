#include <cmath>
#include <optional>

#include "tests/support/error_message.h"
#include "tests/support/training/planning.h"

// Tests how many of the updates a plan assigns to the CPU.

namespace sluice::test::cpu_share_plan_test {
namespace {

const std::string shape =
    small_shape + " --precision bf16 --micro-batch 4 --state-layout split --gradients fp32";

Plan plan_anywhere(double host_rate, const std::string& wishes) {
  const TrainConfig options = parsed(shape + wishes);
  DeviceProfile profile = machine(true);
  profile.host_rate = host_rate;
  // Slow enough that copies are waited for.
  profile.to_device_rate = profile.to_host_rate = 2e8;
  return plan_run(options, resolve_shape(options, true, profile.capability, profile.name), profile)
      .chosen;
}

/// Returns a plan of the device's memory that holds no block's state, and room in the host's.
Plan plan_with(double host_rate, const std::string& placement = "") {
  static const std::size_t device =
      need_of(plan_anywhere(0, " --placement offload-state:none" + budget(1 << 30, 1 << 30, true)),
              true)
          .device;
  return plan_anywhere(host_rate, " --placement " + (placement.empty() ? "auto:none" : placement) +
                                      budget(device, 1 << 30, true));
}

/// Returns a placement in which the CPU updates so many of four blocks.
std::string by_cpu(int blocks) {
  const std::string gpu = "offload-state:none", cpu = "offload-optimizer:none";
  return blocks == 0 ? gpu : blocks == 4 ? cpu : gpu + "*" + std::to_string(4 - blocks) + "," + cpu;
}

std::int64_t cpu_blocks(const Plan& plan) {
  return plan.choice.count(Residency::cpu);
}

}  // namespace

TEST_CASE("the CPU takes the share of the updates that saves most time", "[planner]") {
  double before = INFINITY;
  std::int64_t blocks = 0;
  for (const double rate : {0.0, 1e6, 1e8, 5e8, 2e9, 1e10, 1e12}) {
    const Plan chosen = plan_with(rate);
    CAPTURE(rate, cpu_blocks(chosen), chosen.time.total());
    double best = INFINITY;
    for (int cpu = 0; cpu <= (rate > 0 ? 4 : 0); ++cpu)
      best = std::min(best, plan_with(rate, by_cpu(cpu)).time.total());
    CHECK(chosen.time.total() <= best / 0.98);
    // A faster CPU is given no less, and no step takes longer for it.
    CHECK(cpu_blocks(chosen) >= blocks);
    CHECK(chosen.time.total() <= before);
    if (rate <= 1e6) CHECK(cpu_blocks(chosen) == 0);
    blocks = cpu_blocks(chosen);
    before = chosen.time.total();
  }
  CHECK(blocks >= 3);
}

TEST_CASE("what a slow CPU's updates take is what they read and write", "[planner]") {
  // Four blocks of 12 matrices' worth of 64 x 64 and 13 vectors; remainder and two moments are read
  // and written, the gradient and the weight read, the weight written.
  const double bytes = 4 * (12 * 64 * 64 * (2 * 10.0 + 4 + 2 + 2));
  const double slow = plan_with(1e6, by_cpu(4)).time.total();
  const double half = plan_with(2e6, by_cpu(4)).time.total();
  CHECK(slow - half == Approx(bytes / 2e6).epsilon(0.02));
}

TEST_CASE("a plan without a share of the CPU's is not missed for one with it", "[planner]") {
  const std::string none = " --placement auto:none";
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
      const auto roomy = fitting(rate, none + budget(device, 1 << 30, true));
      const auto alone = fitting(0, none + budget(device, 1 << 30, true));
      if (!alone || alone->choice.offloads_weights()) {
        only_shared += roomy ? 1 : 0;
        continue;
      }
      ++compared;
      REQUIRE(roomy);
      CHECK(roomy->time.total() <= alone->time.total() / 0.98);
      if (rate <= 1e6) CHECK(cpu_blocks(*roomy) == 0);
      shared += cpu_blocks(*roomy) > 0 ? 1 : 0;
      // No byte of the host is left for staging buffers.
      CHECK(fitting(rate, none + budget(device, need_of(*alone, true).host, true)));
    }
  CHECK(compared > by_form(12, 50));
  CHECK(shared > by_form(5, 20));
  CHECK(only_shared > 0);
}

TEST_CASE("a share of the CPU's is counted, and found again by its flags", "[planner]") {
  for (const std::string& placement : {std::string(), by_cpu(1), by_cpu(4)}) {
    const Plan chosen = plan_with(2e9, placement);
    CAPTURE(to_flags(chosen.choice));
    REQUIRE(cpu_blocks(chosen) > 0);
    CHECK(chosen.memory.pinned < chosen.memory.host);
    CHECK(same(plan_with(2e9, to_string(chosen.choice.placement)), chosen));
    const MemoryBytes need = need_of(chosen, true);
    const auto at = [&](std::size_t device, std::size_t host) {
      return error_message(
          [&] { plan_anywhere(2e9, " " + to_flags(chosen.choice) + budget(device, host, true)); });
    };
    CHECK(at(need.device, need.host) == "(no error)");
    CHECK_THAT(at(need.device - 1, need.host), Contains(" 1 too many"));
    CHECK_THAT(at(need.device, need.host - 1), Contains(" 1 too many"));
  }
}

}  // namespace sluice::test::cpu_share_plan_test
