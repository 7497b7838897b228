#include <nlohmann/json.hpp>

#include "apps/plan/cost/muon_cost.h"
#include "apps/plan/cost/scaling.h"
#include "apps/report/tensor_report.h"
#include "models/lora/targets.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/training/planning.h"
#include "tests/support/training/training.h"

// What an update by Muon costs where ranks divide the matrices, computed by hand.

namespace sluice::test::muon_plan_test {
namespace {

const DecoderConfig even{
    .n_layer = 3, .n_head = 4, .n_embd = 64, .vocab_size = 96, .n_positions = 16};

Json traffic_of(const std::string& flags) {
  const std::string shape =
      "--device cpu --precision fp32 --n-layer 3 --n-head 4 --n-embd 64 --vocab-size 96 "
      "--context 16 --sample-tokens 0 --batch-size 8 --micro-batch 2 --placement auto:none ";
  return Json::parse(run_well("plan", words(shape + flags + " --json")))
      .at("tensor")
      .at("traffic")[0];
}

}  // namespace

TEST_CASE("the plan lists the sums of Muon", "[tensor-plan][muon]") {
  // The squares and five products of 64 x 64 for each of 4 matrices in 3 blocks.
  constexpr std::int64_t bytes = 3 * 4 * (8 + 5 * 64 * 64 * 4);
  const Json adamw = traffic_of("--tp 4"), muon = traffic_of("--tp 4 --optimizer muon");
  CHECK(adamw.at("update_sums") == Json{{"operations", 0}, {"bytes", 0}});
  CHECK(muon.at("update_sums") == Json{{"operations", 3 * 4 * 6}, {"bytes", bytes}});
  CHECK(muon.at("sums_forward") == adamw.at("sums_forward"));
  CHECK(muon.at("bytes_sent").get<std::int64_t>() ==
        adamw.at("bytes_sent").get<std::int64_t>() + bytes * 3 / 2);
  CHECK(muon.at("seconds") > adamw.at("seconds"));
  CHECK(muon.at("exposed_seconds") > adamw.at("exposed_seconds"));
  // Replicas that share the state share the matrices too.
  CHECK(traffic_of("--tp 4 --dp 2 --zero 1 --optimizer muon").at("update_sums") ==
        Json{{"operations", 3 * 4 * 6 / 2}, {"bytes", bytes / 2}});
}

TEST_CASE("GPUs that exchange through the host have room for the sums of Muon",
          "[tensor-plan][muon]") {
  TrainingTask task{
      .config = {.n_layer = 1, .n_head = 2, .n_embd = 2048, .vocab_size = 64, .n_positions = 16},
      .tp = 2};
  const MemoryChoice choice = task.resident();
  const auto largest = [&](const char* optimizer) {
    task.optimizer = optimizer;
    return largest_exchanges(task.options(), task.setup(DeviceKind::cpu, choice), choice, {.tp = 2})
        .tensor;
  };
  CHECK(largest("muon") == 2048 * 2048 * 4);
  CHECK(largest("adamw") < largest("muon"));
}

TEST_CASE("the plan counts the products and sums of Muon", "[tensor-plan][muon]") {
  const MemoryChoice choice{.micro_batch = 4, .placement = {.blocks = std::vector<Placement>(3)}};
  DeviceProfile profile = machine(true);
  profile.multiprocessors = 0;
  StepWork work{.batch = 8, .seq_len = 16};
  const auto more = [&](std::int64_t ranks, double share) {
    work.shards = {ranks, {.bandwidth = 1e9, .latency = 1e-3}};
    work.share = share;
    work.orthogonalizes = false;
    const StepTime without = predict_step(even, choice, work, profile);
    work.orthogonalizes = true;
    const StepTime with = predict_step(even, choice, work, profile);
    CHECK(with.total() - without.total() ==
          Approx(with.update - without.update + with.tensor - without.tensor));
    return std::pair(with.update - without.update, with.tensor - without.tensor);
  };
  // 5 x 2 x 64^2 x (5/8 (k + 64) + k) operations with the k of each matrix that is summed over.
  const auto seconds = [&](double ranks) {
    double operations = 0;
    for (const double k : {192.0, 64.0, 256.0, 256.0})
      operations += 3 * 5 * 2 * 64 * 64 * (0.625 * (k / ranks + 64) + k / ranks);
    return operations / profile.wide_flops;
  };
  CHECK(more(1, 1).first == Approx(seconds(1)));
  CHECK(more(1, 1).second == 0);
  const auto [products, sums] = more(4, 1);
  CHECK(products == Approx(seconds(4)));
  // 72 all-reduces, each of 3 + 3 messages and of 2 x 3/4 of its bytes.
  CHECK(sums == Approx(72 * 6e-3 + 1.5 * 3 * 4 * (8 + 5 * 64 * 64 * 4) / 1e9));
  CHECK(more(4, 0.5).first == Approx(products / 2));
  CHECK(more(4, 0.5).second == Approx(sums / 2));
  // Replicas that share the state do not share the products twice.
  const ScalingTask replicas{.config = even,
                             .choice = choice,
                             .work = work,
                             .profile = profile,
                             .interconnect = {},
                             .traffic = {.zero = true}};
  ScalingTask plain = replicas;
  plain.work.orthogonalizes = false;
  CHECK(predict_ranks(replicas, 2, 8).compute.update - predict_ranks(plain, 2, 8).compute.update ==
        Approx(products / 2));
  // Of adapters, the matrices A are [4, inputs], and B [outputs, 4].
  DecoderConfig adapted = even;
  adapted.lora = {.rank = 4, .alpha = 4, .targets = lora_targets(even, "all")};
  double operations = 0;
  for (const double k : {64.0, 192.0, 64.0, 64.0, 64.0, 256.0, 256.0, 64.0})
    operations += 5 * 2 * 4 * 4 * (0.625 * (k + 4) + k);
  CHECK(MuonCost(adapted, 1, DType::f32).flops == Approx(operations));
}

}  // namespace sluice::test::muon_plan_test
