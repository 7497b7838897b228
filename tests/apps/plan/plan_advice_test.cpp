#include "apps/report/plan_advice.h"

#include "tests/support/catch.h"
#include "tests/support/training/planning.h"

// A plan says which shapes and batches waste a part of a GPU.

namespace sluice::test::plan_advice_test {
namespace {

std::vector<std::string> advice(const std::string& flags, bool gpu = true) {
  const TrainConfig options = parsed(flags);
  const DeviceProfile profile = machine(gpu);
  RunSetup setup = resolve_shape(options, gpu, profile.capability, profile.name);
  const Planned planned = plan_run(options, setup, profile);
  return plan_advice(options, setup, profile, planned.chosen.choice);
}

/// A shape of this width with so many tokens in a micro-batch of one sequence.
std::string shape(int width, int tokens) {
  return "--n-layer 2 --n-head 2 --vocab-size 101 --batch-size 1 --micro-batch 1 --context 4096 "
         "--host-memory 1GiB "
         "--n-embd " +
         std::to_string(width) + " --seq-len " + std::to_string(tokens);
}

}  // namespace

TEST_CASE("a plan names a width that fills no tiles, and its neighbours", "[plan]") {
  const auto odd = advice(shape(130, 2048) + " --precision bf16");
  REQUIRE(odd.size() == 1);
  // 62 of the 64 columns of the last of three tiles.
  CHECK_THAT(odd[0], Contains("width 130") && Contains("97 %") && Contains("32.3 % of all") &&
                         Contains("--n-embd 128 or 192 would") && Contains("multiples of 8 alone"));
  const auto eights = advice(shape(136, 2048) + " --precision bf16");
  REQUIRE(eights.size() == 1);
  CHECK_THAT(eights[0], Contains("width 136") && !Contains("alone"));
  CHECK_THAT(advice(shape(32, 2048) + " --precision bf16").at(0),
             Contains("50.0 % of all; --n-embd 64 would waste none"));
  CHECK(advice(shape(128, 2048) + " --precision bf16").empty());
  CHECK(advice(shape(130, 2048) + " --precision fp32").empty());
  CHECK(advice(shape(130, 2048) + " --precision bf16", false).empty());
}

TEST_CASE("a plan names widths that the heads and the ranks of --tp divide", "[plan]") {
  const std::string more =
      " --precision bf16 --seq-len 2048 --context 2048 --host-memory 1GiB "
      "--vocab-size 120 --batch-size 1 --micro-batch 1 --n-layer 2";
  CHECK_THAT(advice("--n-head 10 --n-embd 1000" + more).at(0),
             Contains("width 1000") && Contains("--n-embd 960 or 1280 would"));
  CHECK_THAT(advice("--n-head 4 --n-embd 384 --tp 4" + more).at(0),
             Contains("width 96 on each rank") && Contains("--n-embd 256 or 512 would"));
}

TEST_CASE("a plan names a batch that leaves a part of the GPU idle", "[plan]") {
  // 16 rows reach half of the rate of products on four multiprocessors.
  const auto few = advice(shape(128, 16) + " --precision bf16");
  REQUIRE(few.size() == 1);
  CHECK_THAT(few[0], Contains("micro-batches of 1 x 16 tokens") &&
                         Contains("16 x 16 (--batch-size 16 or more)") && Contains("2.5 times"));
  CHECK(advice("--pp 2 " + shape(128, 16) + " --precision bf16").empty());
  CHECK(advice(shape(128, 512) + " --precision bf16").empty());
  CHECK(advice(shape(128, 16) + " --precision bf16", false).empty());
}

}  // namespace sluice::test::plan_advice_test
