// Pipelines whose messages go by NCCL, on GPUs that run one of its kernels at a time.

#include "parallel/comm/mesh.h"
#include "parallel/pipeline/executor.h"
#include "tests/parallel/nccl_standin.h"
#include "tests/parallel/pipeline/all_schedules.h"
#include "tests/parallel/pipeline/stages.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"

namespace sluice::test::nccl_pipeline_test {
namespace {

using Values = std::vector<std::vector<double>>;

/// Losses by micro-batch, and then the gradients of every stage, of a loop over the micro-batches.
Values in_sequence(const Schedule& schedule) {
  const DevicePtr device = open_gpu(1);
  const SmallData data;
  std::vector<std::unique_ptr<SmallStage>> stages;
  for (int s = 0; s < schedule.stages; ++s)
    stages.push_back(std::make_unique<SmallStage>(s, schedule.stages, data, device));
  Values values;
  for (int m = 0; m < schedule.micro_batches; ++m) {
    Tensor x;
    for (const auto& stage : stages)
      x = stage->forward(m, x);
    values.push_back({x.item()});
    backward(x);
  }
  for (const auto& stage : stages)
    values.push_back(stage->gradients());
  return values;
}

/// A rank of a mesh on a GPU. Shards add up in every forward, and replicas during the last
/// backward, which do not change what the stages compute.
void run_rank(const std::shared_ptr<Transport>& transport, const Mesh& mesh,
              const Schedule& lowered, std::uint64_t seed, const Values& expected) {
  const int me = transport->rank();
  const DevicePtr device = open_gpu(seed * 100 + static_cast<std::uint64_t>(me));
  const auto progress = std::make_shared<Progress>();
  const auto group = [&](const std::vector<int>& members, std::uint64_t id,
                         const std::string& name) {
    const std::shared_ptr<Transport> by = transport->subgroup(members, id);
    return std::make_shared<Communicator>(
        by_nccl()(by, device), by, nullptr,
        Communicator::Options{.name = name, .timeout = 60, .together = progress});
  };
  const auto peers = group(mesh.peers(me), 1, "replicas");
  const auto shards = group(mesh.shards(me), 2, "shards");
  const auto of_stage = rank_of_stage(lowered);
  const SmallData data;
  std::vector<std::unique_ptr<SmallStage>> stages(of_stage.size());
  std::vector<Stage*> here;
  const auto ones = [&] {
    return Tensor::from_host(device, {3}, DType::f32, std::vector<double>(3, 1));
  };
  const Tensor sum = ones();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (of_stage[s] == mesh.stage(me)) {
      stages[s] = std::make_unique<SmallStage>(static_cast<int>(s), lowered.stages, data, device);
      stages[s]->before_forward = [&](int) {
        shards->all_reduce(sum.view(), {.label = "sum", .stream = sum.stream()})->wait();
      };
    }
    here.push_back(stages[s].get());
  }
  const StageLinks links(
      of_stage, mesh.stage(me),
      [&](std::span<const int> places, std::uint64_t id, const std::string& name) {
        std::vector<int> members;
        for (const int place : places)
          members.push_back(mesh.rank(mesh.replica(me), place, mesh.shard(me)));
        return group(members, 16 + id, name);
      });
  PipelineExecutor executor(lowered, mesh.stage(me), here, links, Stash::graph, device);
  std::vector<std::pair<Tensor, Handle>> reductions;
  executor.run({.loss =
                    [&](int m, const Tensor& loss) {
                      expect(loss.item() == expected[static_cast<std::size_t>(m)][0], "a loss");
                    },
                .before_backward =
                    [&](int, int m) {
                      if (m + 1 < lowered.micro_batches) return;
                      reductions.emplace_back(ones(), nullptr);
                      auto& [one, handle] = reductions.back();
                      handle = peers->all_reduce(one.view(),
                                                 {.label = "replicas", .stream = one.stream()});
                    }});
  for (const auto& [one, handle] : reductions) {
    handle->wait();
    expect(one.to_host() == std::vector<double>(3, mesh.dp), "a sum of the replicas");
  }
  for (std::size_t s = 0; s < stages.size(); ++s)
    if (stages[s])
      expect(
          stages[s]->gradients() == expected[static_cast<std::size_t>(lowered.micro_batches) + s],
          "gradients");
}

void check_mesh(const Mesh& mesh, const Schedule& computing, std::uint64_t seed) {
  set_standin("seed=" + std::to_string(seed) + " resident=1");
  const Values expected = in_sequence(computing);
  const Schedule lowered = lower(computing);
  check_threads(mesh.size(), [&](std::unique_ptr<Transport> transport) {
    run_rank(std::move(transport), mesh, lowered, seed, expected);
  });
}

}  // namespace

TEST_CASE("nccl: a mesh of 2 x 2 x 2 needs room for one kernel", "[threads]") {
  for (std::uint64_t seed = 1; seed <= by_form(10U, 100U); ++seed) {
    CAPTURE(seed);
    check_mesh({.dp = 2, .pp = 2, .tp = 2}, one_forward_one_backward(2, 4), seed);
  }
}

TEST_CASE("nccl: every schedule needs room for one kernel", "[threads]") {
  std::uint64_t seed = 1000;
  for (const int ranks : {2, 3, 4})
    for (const auto& [name, schedule] : all_schedules(ranks, 5)) {
      CAPTURE(ranks, name);
      check_mesh({.pp = ranks}, schedule, seed++);
    }
}

}  // namespace sluice::test::nccl_pipeline_test
