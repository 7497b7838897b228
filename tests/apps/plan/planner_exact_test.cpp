#include <optional>

#include "tests/support/error_message.h"
#include "tests/support/training/planning.h"

// A plan given back as flags, with exactly the budgets that it needs, is that plan: also where
// layers differ, where nothing streams, and where the budget does not even hold the driver.

namespace sluice::test {
namespace {

using Catch::Contains;

const PlanRow rows[] = {
    {small_shape + " --precision bf16", ""},
    {small_shape + " --precision fp32", " --recompute block*2,gelu"},
    {odd_shape + " --precision bf16", " --recompute gelu+ln*3,none --gradients fp32"},
    {odd_shape + " --precision bf16", "", false},
};

}  // namespace

TEST_CASE("a plan whose layers differ is found again at exactly what it needs", "[planner_exact]") {
  for (const PlanRow& row : rows)
    for_budgets(row, [&](const MemoryBytes& allowed) {
      std::optional<Planned> planned;
      try {
        planned = plan(row.flags() + budget(allowed.device, allowed.host, row.gpu), row.gpu);
      } catch (const Error&) {
        return;
      }
      const MemoryBytes need = need_of(planned->chosen, row.gpu);
      const std::string told = row.shape + " " + to_flags(planned->chosen.choice);
      CAPTURE(told, need.device, need.host);
      CHECK(error_message([&] { plan(told + budget(need.device, need.host, row.gpu), row.gpu); }) ==
            "(no error)");
      CHECK_THAT(
          error_message([&] { plan(told + budget(need.device - 1, need.host, row.gpu), row.gpu); }),
          Contains(" 1 too many"));
    });
}

TEST_CASE("a plan's flags say how its state is cut, also where none of it streams",
          "[planner_exact]") {
  const std::string shape = odd_shape + " --precision bf16";
  const std::string wide = budget(1 << 30, 1 << 30, true);
  const Plan asked = plan(shape + " --stream-chunk 3001 --offload off" + wide, true).chosen;
  const Plan told = plan(shape + " " + to_flags(asked.choice) + wide, true).chosen;
  CHECK(told.memory.high_water == asked.memory.high_water);
}

TEST_CASE("a budget below what the driver takes is short by all of the difference",
          "[planner_exact]") {
  const DeviceProfile profile = machine(true);
  const std::size_t allowed = profile.context / 2;
  const std::string told =
      small_shape + " --precision bf16 --micro-batch 1 --recompute block " +
      "--state-layout split --gradients fp32 --resident-blocks 0 --staging-chunks 4";
  const MemoryBytes need = need_of(plan(told + budget(1 << 30, 1 << 30, true), true).chosen, true);
  CHECK_THAT(error_message([&] { plan(told + budget(allowed, 1 << 30, true), true); }),
             Contains(" " + std::to_string(need.device - allowed) + " too many"));
}

TEST_CASE("a host budget below what the process takes is refused", "[planner_exact]") {
  const std::string told = small_shape + " --precision bf16";
  CHECK_THAT(error_message([&] { plan(told + budget(1 << 30, 3 << 19, true), true); }),
             Contains("--host-memory"));
}

}  // namespace sluice::test
