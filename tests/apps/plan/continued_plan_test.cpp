#include "apps/plan/continued_plan.h"

#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/training/planning.h"

// A run that goes on keeps what decides its bits, as far as its flags and the memory let it.

namespace sluice::test::continued_plan_test {
namespace {

struct Continued {
  MemoryChoice choice;
  std::string warning;
  std::int64_t micro_batch;  ///< of the setup
};

Continued go_on(const std::string& flags, const RecordedChoice& record) {
  const TrainConfig options = parsed(flags);
  const DeviceProfile profile = machine(true);
  RunSetup setup = resolve_shape(options, true, profile.capability, profile.name);
  const ContinuedPlan plan = plan_continued(options, setup, profile, record);
  return {plan.planned.chosen.choice, plan.warning, setup.trainer.micro_batch};
}

const std::string run = small_shape + " --precision bf16 --host-memory 1GiB";
const std::string plenty = run + " --gpu-memory 1GiB";
/// Nothing that a planner with plenty of memory would choose.
constexpr RecordedChoice record{
    .micro_batch = 2, .layout = StateLayout::bf16m, .narrow_gradients = true, .head_chunk = 24};

}  // namespace

TEST_CASE("what a checkpoint records is kept where flags leave it open", "[continued]") {
  const MemoryChoice free = plan(plenty, true).chosen.choice;
  REQUIRE(free.micro_batch != record.micro_batch);
  REQUIRE(free.layout != record.layout);
  REQUIRE_FALSE(free.narrow_gradients);

  const Continued kept = go_on(plenty, record);
  CHECK(kept.choice.micro_batch == 2);
  CHECK(kept.micro_batch == 2);
  CHECK(kept.choice.layout == StateLayout::bf16m);
  CHECK(kept.choice.narrow_gradients);
  CHECK(kept.choice.head_chunk == 24);
  CHECK(kept.warning.empty());

  const Continued told = go_on(
      plenty + " --micro-batch 4 --state-layout split --gradients fp32 --head-chunk 40", record);
  CHECK(told.choice.micro_batch == 4);
  CHECK(told.choice.layout == StateLayout::split);
  CHECK_FALSE(told.choice.narrow_gradients);
  CHECK(told.choice.head_chunk == 40);
  CHECK(told.warning.empty());
}

TEST_CASE("where a recorded micro-batch cannot be, the layout stays", "[continued]") {
  const std::string said = "--micro-batch 3 --state-layout bf16m --gradients bf16";
  SECTION("since it does not divide a rank's share") {
    const Continued on = go_on(plenty, {3, StateLayout::bf16m, true});
    CHECK(on.choice.layout == StateLayout::bf16m);
    CHECK(on.choice.narrow_gradients);
    CHECK(8 % on.choice.micro_batch == 0);
    CHECK_THAT(on.warning, Contains(said) && Contains("not divisible by --micro-batch 3"));
  }
  SECTION("since it does not fit") {
    const std::string fixed = " --placement offload-state:block --stream-chunks 4194304*4";
    const auto needs = [&](const char* rows) {
      return need_of(plan(plenty + fixed + " --state-layout bf16m --gradients bf16 --micro-batch " +
                              rows,
                          true)
                         .chosen,
                     true)
          .device;
    };
    REQUIRE(needs("8") > needs("4"));
    const std::string small = run + fixed + " --gpu-memory " + std::to_string(needs("8") - 1);
    const Continued on = go_on(small, {8, StateLayout::bf16m, true});
    CHECK(on.choice.micro_batch < 8);
    CHECK(on.choice.layout == StateLayout::bf16m);
    CHECK_THAT(on.warning, Contains("too many"));
  }
}

TEST_CASE("where no part of a record can be kept the plan is a new one", "[continued]") {
  // fp32 weights have no remainder.
  const std::string wide = small_shape + " --precision fp32 --host-memory 1GiB --gpu-memory 1GiB";
  const Continued on = go_on(wide, {3, StateLayout::split, false});
  CHECK(to_flags(on.choice) == to_flags(plan(wide, true).chosen.choice));
  CHECK_THAT(on.warning, Contains("not divisible"));

  CHECK_THAT(error_message([&] { go_on(wide + " --state-layout split", record); }),
             Contains("--precision bf16"));
}

TEST_CASE("a record reads as it was written", "[continued]") {
  for (const StateLayout layout : {StateLayout::fp32, StateLayout::split, StateLayout::int8})
    for (const bool narrow : {false, true}) {
      const RecordedChoice written{7, layout, narrow};
      CheckpointManifest manifest;
      manifest.fields =
          std::make_shared<const nlohmann::json>(nlohmann::json{{"memory", to_json(written)}});
      const auto read = recorded_choice("folder", manifest);
      REQUIRE(read);
      CHECK(to_flags(*read) == to_flags(written));
    }
  CHECK_THAT(to_flags(record), Contains("--head-chunk 24"));
  CHECK_THAT(to_flags(RecordedChoice()), !Contains("--head-chunk"));
  CheckpointManifest older;
  older.fields = std::make_shared<const nlohmann::json>(nlohmann::json::object());
  CHECK_FALSE(recorded_choice("folder", older));
}

}  // namespace sluice::test::continued_plan_test
