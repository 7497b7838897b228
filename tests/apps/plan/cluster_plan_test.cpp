#include "apps/plan/cluster/cluster_fit.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "apps/plan/cost/stage_times.h"
#include "apps/plan/plan_candidates.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/program.h"
#include "tests/support/training/planning.h"

// Plans for a cluster, held against all that it could have chosen.

namespace sluice::test::cluster_plan_test {
namespace {

const std::string shape =
    "--n-layer 4 --n-head 4 --n-embd 64 --vocab-size 101 --context 32 --batch-size 16 "
    "--precision bf16 --gradients fp32 --bucket-size 64KiB ";
const std::string plenty = " --host-memory 1GiB";

/// GPUs of a test's own, two in a node.
ClusterTask task_of(const std::string& flags, std::int64_t gpus) {
  ClusterTask task{.options = parsed(shape + flags), .profile = machine(true), .gpus = gpus};
  task.profile.link_bandwidth = 1e9;
  task.profile.link_latency = 1e-6;
  task.options.planning.network = "1GB";
  task.options.planning.ranks_per_node = 2;
  TrainConfig alone = task.options;
  alone.parallel = alone.parallel.alone();
  const RunSetup setup = resolve_shape(alone, true, task.profile.capability, task.profile.name);
  task.config = setup.config;
  task.precision = setup.precision;
  task.seq_len = setup.trainer.seq_len;
  return task;
}

/// Seconds of the fastest of all ways that fit, tried one by one.
double fastest(const ClusterTask& task) {
  for (const StatePrecision& form : precision_candidates(task.options, task.precision.dtype)) {
    double best = std::numeric_limits<double>::infinity();
    for (const Mesh& mesh : meshes_of(task))
      for (ClusterCandidate& candidate : candidates_of(task, mesh)) {
        candidate.choice.layout = form.layout;
        candidate.choice.narrow_gradients = form.narrow_gradients;
        if (const ClusterFit fit = fit_candidate(task, candidate); fit.fits)
          best = std::min(best, fit.candidate.time.total());
      }
    if (best < std::numeric_limits<double>::infinity()) return best;
  }
  FAIL("nothing fits");
  return 0;
}

std::string mesh_text(const Mesh& mesh) {
  return std::to_string(mesh.dp) + " x " + std::to_string(mesh.pp) + " x " +
         std::to_string(mesh.tp);
}

/// Returns the memory of replica 0's largest rank, counted with the flags that a plan prints.
std::size_t counted(const ClusterTask& task, const ClusterCandidate& candidate) {
  TrainConfig o = parsed(shape + to_flags(candidate, task.options));
  const RunSetup setup = resolve_shape(o, true, task.profile.capability, task.profile.name);
  std::size_t most = 0;
  for (int rank = 0; rank < candidate.mesh.pp * candidate.mesh.tp; ++rank)
    most = std::max(most, plan_memory(o, setup, candidate.choice, task.profile.workspace,
                                      {candidate.mesh, rank})
                              .high_water);
  return most;
}

const std::string on_cpu =
    "--device cpu --n-layer 4 --n-head 4 --n-embd 32 --vocab-size 64 --context 16 --batch-size 8 ";

}  // namespace

TEST_CASE("meshes are all products that the model allows", "[cluster]") {
  ClusterTask task = task_of("", 1);
  task.options.planning.ranks_per_node = 8;
  for (task.gpus = 1; task.gpus <= 48; ++task.gpus) {
    CAPTURE(task.gpus);
    std::set<std::string> found, all;
    for (const Mesh& mesh : meshes_of(task)) {
      CHECK(mesh.size() == task.gpus);
      CHECK(found.insert(mesh_text(mesh)).second);
    }
    // 4 heads and an MLP of 256; 4 blocks.
    for (int tp : {1, 2, 4})
      for (int pp = 1; pp <= 4; ++pp)
        for (int dp = 1; dp <= task.gpus; ++dp)
          if (dp * pp * tp == task.gpus) all.insert(mesh_text({.dp = dp, .pp = pp, .tp = tp}));
    CHECK(found == all);
  }
  const auto list = [&] {
    std::string text;
    for (const Mesh& mesh : meshes_of(task))
      text += mesh_text(mesh) + "; ";
    return text;
  };
  task.gpus = 8;
  task.options.planning.ranks_per_node = 2;
  CHECK(list() == "8 x 1 x 1; 4 x 2 x 1; 2 x 4 x 1; 4 x 1 x 2; 2 x 2 x 2; 1 x 4 x 2; ");
  // Beyond a node only where it is asked for.
  task.tp = 4;
  CHECK(list() == "2 x 1 x 4; 1 x 2 x 4; ");
  task.options.parallel.dp = 2;
  CHECK(list() == "2 x 1 x 4; ");
  task.pp = 2;
  CHECK(list().empty());
  CHECK_THAT(error_message([&] { plan_cluster(task); }), Contains("0 * 16 = 0"));
  task.tp = 3;
  CHECK_THAT(error_message([&] { plan_cluster(task); }), Contains("the MLP is 256 wide"));
}

TEST_CASE("ways share a batch evenly, and flags fix what they say", "[cluster]") {
  ClusterTask task = task_of("", 8);
  const auto candidates = candidates_of(task, {.dp = 2, .pp = 2, .tp = 2});
  std::set<std::string> kinds;
  std::set<std::int64_t> rows;
  for (const ClusterCandidate& candidate : candidates) {
    rows.insert(candidate.choice.micro_batch);
    CHECK(candidate.micro_batches * candidate.choice.micro_batch == 8);
    kinds.insert(fmt::format("{}{}{}", name_in(pipelines, *candidate.pipeline),
                             candidate.virtual_stages, candidate.zero));
    CHECK((candidate.virtual_stages == 1 || candidate.micro_batches % 2 == 0));
  }
  CHECK(kinds == std::set<std::string>{"1f1b10", "1f1b11", "1f1b12", "interleaved20",
                                       "interleaved21", "interleaved22"});
  CHECK(rows == std::set<std::int64_t>{1, 2, 4, 8});
  CHECK(candidates_of(task, {.dp = 3, .pp = 2, .tp = 2}).empty());
  task = task_of("--micro-batch 4 --pipeline gpipe", 8);
  task.zero = 1;
  REQUIRE(candidates_of(task, {.dp = 2, .pp = 2, .tp = 2}).size() == 1);
  CHECK(candidates_of(task, {.dp = 8, .pp = 1, .tp = 1}).empty());
  const ClusterCandidate candidate = candidates_of(task, {.dp = 2, .pp = 2, .tp = 2})[0];
  CHECK_THAT(to_flags(candidate, task.options),
             Contains("--dp 2 --pp 2 --tp 2 --pipeline gpipe --zero 1 --micro-batch 4"));
}

TEST_CASE("the chosen way is the fastest of all, and its memory what is counted", "[cluster]") {
  for (const std::int64_t gpus : {1, 2, 4, 8}) {
    std::size_t most = 0;
    for (const ClusterCandidate& candidate : plan_cluster(task_of(plenty, gpus)).candidates)
      most = std::max(most, candidate.memory.high_water + machine(true).context);
    for (const int percent : {100, 85}) {
      if (!in_form(2, {percent, gpus % 3})) continue;
      std::ostringstream flags;
      flags << plenty << " --gpu-memory " << most * static_cast<std::size_t>(percent) / 100;
      CAPTURE(gpus, percent);
      ClusterTask task = task_of(flags.str(), gpus);
      const ClusterPlan plan = plan_cluster(task);
      REQUIRE_FALSE(plan.candidates.empty());
      CHECK(plan.candidates[0].time.total() == Approx(fastest(task)).epsilon(1e-12));
      CHECK(plan.refused == 0);
      CHECK(plan.meshes ==
            static_cast<std::int64_t>(plan.candidates.size()) + plan.unfit + plan.slower);
      for (std::size_t i = 1; i < plan.candidates.size(); ++i)
        CHECK(plan.candidates[i - 1].time.total() <= plan.candidates[i].time.total());
      for (const ClusterCandidate& candidate : plan.candidates) {
        INFO(to_flags(candidate, task.options));
        CHECK(counted(task, candidate) == candidate.memory.high_water);
        CHECK(candidate.memory.high_water + task.profile.context <=
              budgets_of(task.options.memory, task.options.parallel, task.profile).device_allowed);
      }
      // Looking for fewer finds the same.
      task.top = 2;
      const ClusterPlan two = plan_cluster(task);
      REQUIRE(two.candidates.size() == std::min<std::size_t>(2, plan.candidates.size()));
      for (std::size_t i = 0; i < two.candidates.size(); ++i)
        CHECK(to_flags(two.candidates[i], task.options) ==
              to_flags(plan.candidates[i], task.options));
    }
  }
}

TEST_CASE("pipelines of many micro-batches are counted to the byte", "[cluster]") {
  for (const std::string flags :
       {"--pipeline 1f1b", "--pipeline interleaved*2", "--pipeline gpipe", "--pipeline zb-h1",
        "--pipeline 1f1b --stash input", "--pipeline 1f1b --placement offload-state:block"})
    for (const std::int64_t pp : {2, 4}) {
      if (pp == 4 && flags.find("interleaved") != std::string::npos) continue;
      CAPTURE(flags, pp);
      // 32 micro-batches, and 33.
      for (const std::string batch : {"64", "66"}) {
        ClusterTask task =
            task_of(flags + " --batch-size " + batch + " --micro-batch 1 --dp 2" + plenty, 2 * pp);
        task.tp = 1;
        task.zero = 0;
        const ClusterPlan plan = plan_cluster(task);
        REQUIRE(plan.candidates.size() == 1);
        const ClusterCandidate& candidate = plan.candidates[0];
        TrainConfig o = options_of(candidate, task.options);
        const RunSetup setup = resolve_shape(o, true, task.profile.capability, task.profile.name);
        std::size_t most = 0;
        for (int rank = 0; rank < candidate.mesh.pp; ++rank)
          most = std::max(most, plan_memory(o, setup, candidate.choice, task.profile.workspace,
                                            {candidate.mesh, rank})
                                    .high_water);
        CHECK(candidate.memory.high_water == most);
      }
    }
}

TEST_CASE("many micro-batches take as long as if all were simulated", "[cluster]") {
  constexpr auto one_f_one_b = ScheduleName::one_forward_one_backward;
  constexpr auto round = ScheduleName::interleaved;
  const auto simulated = [](ScheduleName name, int ranks, int each, int count,
                            const std::vector<StageCosts>& costs) {
    return simulate(make_schedule(name, ranks, each, count), costs).makespan;
  };
  for (const int ranks : {2, 3, 4, 8})
    for (const int each : {1, 2})
      for (const int count : {1, 7, 64, 65, 200, 203})
        for (const double send : {0.0, 0.3}) {
          CAPTURE(ranks, each, count, send);
          std::vector<StageCosts> costs(static_cast<std::size_t>(ranks * each),
                                        {.forward = 1, .backward = 2, .send = send});
          costs.back() = {.forward = 1.5, .backward = 3.1, .send = send};
          const ScheduleName name = each > 1 ? round : one_f_one_b;
          CHECK(makespan(name, ranks, each, count, costs) ==
                Approx(simulated(name, ranks, each, count, costs)).epsilon(1e-9));
          if (each == 1)
            CHECK(makespan(ScheduleName::gpipe, ranks, 1, count, costs) ==
                  Approx(simulated(ScheduleName::gpipe, ranks, 1, count, costs)).epsilon(1e-9));
        }
  // (M + P - 1) times what a micro-batch takes.
  const std::vector<StageCosts> equal(16, {.forward = 1, .backward = 2});
  CHECK(makespan(one_f_one_b, 16, 1, 60'000, equal) == Approx(3 * (60'000 + 15)));
  CHECK(makespan(round, 8, 2, 60'000, equal) == Approx(6 * (60'000 + 3.5)));
}

TEST_CASE("a plan of a cluster agrees with the plans of its parts", "[cluster]") {
  // One GPU: plan's own choice and time.
  ClusterTask alone = task_of(plenty, 1);
  const ClusterPlan plan = plan_cluster(alone);
  TrainConfig o = alone.options;
  o.parallel.dp = 1;
  const RunSetup setup = resolve_shape(o, true, alone.profile.capability, alone.profile.name);
  const Plan chosen = plan_run(o, setup, alone.profile).chosen;
  REQUIRE(plan.candidates.size() == 1);
  CHECK(to_flags(plan.candidates[0].choice) == to_flags(chosen.choice));
  CHECK(plan.candidates[0].memory.high_water == chosen.memory.high_water);
  CHECK(plan.candidates[0].time.total() == Approx(chosen.time.total()));

  // A pipeline: what `plan --pp` says of the same flags.
  const std::string flags = on_cpu + "--micro-batch 1 --placement auto:none --gradients fp32 ";
  const Json cluster =
      Json::parse(run_well("plan", words(flags + "--gpus 4 --pp 2 --tp 2 --pipeline 1f1b --json")));
  const Json& candidate = cluster.at("ways").at(0);
  const Json pipeline =
      Json::parse(run_well("plan", words(flags + "--dp 1 --pp 2 --tp 2 --pipeline 1f1b --json")))
          .at("pipeline");
  const Json& seconds = candidate.at("predicted_seconds");
  CHECK(seconds.at("compute").get<double>() + seconds.at("bubble").get<double>() +
            seconds.at("messages").get<double>() ==
        Approx(pipeline.at("compute_seconds").get<double>()));
  CHECK(seconds.at("tensor") > 0);
  std::int64_t most = 0;
  for (const Json& rank : pipeline.at("ranks"))
    most = std::max(most, rank.at("device_bytes").get<std::int64_t>());
  CHECK(candidate.at("device_bytes") == most);

  // Replicas: what `plan --dp` says.
  const Json replicas =
      Json::parse(run_well("plan", words(flags + "--gpus 4 --pp 1 --tp 1 --zero 1 --json")));
  const Json dp =
      Json::parse(run_well("plan", words(flags + "--dp 4 --zero 1 --json"))).at("communication");
  CHECK(replicas.at("ways")[0].at("predicted_seconds").at("total").get<double>() ==
        Approx(dp.at("step_seconds").get<double>()));
  CHECK(replicas.at("ways")[0].at("tokens_per_second").get<double>() ==
        Approx(dp.at("tokens_per_second").get<double>()));
}

TEST_CASE("a faster network or more memory never makes a cluster slower", "[cluster]") {
  // Any mesh, and one that uses every link.
  for (const bool fixed : {false, true}) {
    double before = std::numeric_limits<double>::infinity();
    for (const double rate : {2e6, 1e7, 1e8, 1e9, 1e10, 1e12}) {
      ClusterTask task = task_of(plenty, 8);
      if (fixed) task.pp = task.tp = 2;
      task.profile.link_bandwidth = rate;
      std::ostringstream network;
      network << static_cast<std::int64_t>(rate);
      task.options.planning.network = network.str();
      const ClusterTime time = plan_cluster(task).candidates[0].time;
      CHECK(time.total() <= before);
      if (fixed) {
        CHECK(time.messages >= 0);
        CHECK(time.total() < before);
      }
      before = time.total();
    }
  }
  double before = 0;
  before = std::numeric_limits<double>::infinity();
  for (const char* memory : {"10MiB", "12MiB", "16MiB", "64MiB"}) {
    INFO(memory);
    const double now =
        plan_cluster(task_of(plenty + " --state-layout split --gpu-memory " + memory, 8))
            .candidates.at(0)
            .time.total();
    CHECK(now <= before);
    before = now;
  }
}

TEST_CASE("where nothing fits a cluster, the nearest is named with its bytes", "[cluster]") {
  const std::string small = " --placement resident --state-layout split --gpu-memory ";
  for (const bool measured : {true, false}) {
    const auto plan_in = [&](std::size_t memory) {
      ClusterTask task = task_of(plenty + small + std::to_string(memory), 8);
      if (!measured) task.profile.communication.reset();  // what NCCL takes is assumed
      return plan_cluster(task);
    };
    const std::size_t little = 4 << 20;
    const ClusterPlan none = plan_in(little);
    CHECK(none.candidates.empty());
    REQUIRE(none.nearest);
    CHECK(none.unfit == none.meshes);
    CHECK(none.excess > (measured ? 0 : std::size_t{1} << 30));
    CHECK_FALSE(plan_in(little + none.excess).candidates.empty());
    CHECK(plan_in(little + none.excess - 1).candidates.empty());
  }

  const ProgramResult result = run_program("plan", words(on_cpu + "--gpus 4 --host-memory 192MiB"));
  CHECK(result.exit_code == 2);
  CHECK(count_lines(result.err) == 1);
  CHECK_THAT(result.err, Contains("--gpus 4: nothing fits; the nearest is --dp ") &&
                             Contains("bytes too many"));
}

TEST_CASE("plan prints a cluster's ways, and takes the flags of each", "[cluster]") {
  const Json json = Json::parse(run_well("plan", words(on_cpu + "--gpus 8 --top 20 --json")));
  CHECK(json.at("gpus") == 8);
  CHECK(json.at("meshes") == 8);
  REQUIRE(json.at("ways").size() == 8);
  for (const Json& candidate : json.at("ways")) {
    const std::string flags = candidate.at("flags");
    INFO(flags);
    CHECK_THAT(run_well("plan", words(on_cpu + flags)), Contains("batch        8 sequences"));
  }
  const Json divided =
      Json::parse(run_well("plan", words(on_cpu + "--gpus 4 --sequence-parallel --json")));
  REQUIRE_FALSE(divided.at("ways").empty());
  for (const Json& candidate : divided.at("ways")) {
    const std::string flags = candidate.at("flags");
    CHECK_THAT(flags, Contains("--sequence-parallel") && !Contains("--tp 1 "));
    CHECK_THAT(run_well("plan", words(on_cpu + flags)), Contains("tensor  "));
  }
  const std::string text = run_well("plan", words(on_cpu + "--gpus 8"));
  CHECK_THAT(text, Contains("looked at    8 meshes; 0 do not fit"));
  CHECK_THAT(text, Contains("chosen       --dp "));
  CHECK_THAT(text, Contains("others lose  "));
  CHECK_THAT(text, Contains("nothing here was measured"));
  CHECK_THAT(run_well("plan", words(on_cpu + "--gpus 8 --tp 2 --top 1")),
             Contains("looked at    3 meshes"));

  const auto refused = [](const std::string& flags, const std::string& why) {
    INFO(flags);
    const ProgramResult result = run_program("plan", words(on_cpu + flags));
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains(why));
  };
  refused("--gpus 8 --scaling", "--scaling");
  refused("--gpus 8 --schedule-csv x.csv", "--schedule-csv");
  refused("--gpus 8 --pipeline mine.csv", "a file is for one number of ranks");
  refused("--gpus 7 --pp 7", "no --dp x --pp x --tp of it");
  refused("--gpus 3 --dp 3", "--batch-size 8 cannot be divided");
  refused("--gpus 8 --tp 3", "the MLP is 128 wide");
  refused("--gpus 65537", "--gpus");
  refused("--gpus 0", "--gpus");
  refused("--gpus 6 --tp 4", "--gpus 6 is not divisible by --dp x --pp x --tp = 4: 1 * 4 = 4");
  refused("--gpus 4 --sequence-parallel --tp 1", "no --dp x --pp x --tp of it");
  const ProgramResult blind = run_program("plan", {"--gpus", "2"});
  CHECK(blind.exit_code == 2);
  CHECK_THAT(blind.err, Contains("--gpus needs --model"));
}

TEST_CASE("a plan for many GPUs of a large model is quick", "[cluster]") {
  const Json json = Json::parse(
      run_well("plan", words("--model gpt2-xl --device-profile a100 --gpus 16384 --batch-size "
                             "16384 --json")));
  CHECK(json.at("ways").size() == 10);
  CHECK(json.at("meshes") == 24);
  const Json first = json.at("ways")[0];
  CHECK(first.at("dp").get<int>() * first.at("pp").get<int>() * first.at("tp").get<int>() == 16384);
}

}  // namespace sluice::test::cluster_plan_test
