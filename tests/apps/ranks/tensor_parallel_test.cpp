#include <map>
#include <mutex>

#include "apps/plan/cost/tensor_traffic.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/training/pipelines.h"

// The traffic between tensor-parallel ranks and their memory are what plans predict. Ranks are
// threads here.

namespace sluice::test::tensor_parallel_test {
namespace {

using Kind = TensorTraffic::Kind;
/// Operations by what they are: "all_reduce output".
using Operations = std::map<std::string, Kind>;

/// Sees what shards do together, without what all ranks of a run do.
class Counter final : public Monitor {
 public:
  std::uint64_t begin(std::string_view communicator, const Signature& s) override {
    if (communicator.starts_with("shards of"))
      seen_[std::string(name_of(s.kind)) + " " + std::string(s.label_text())] +=
          Kind{1, static_cast<std::uint64_t>(s.count) * size_of(s.dtype)};
    return 0;
  }
  void wait(std::uint64_t, double) override {}
  void end(std::uint64_t) override {}

  const Operations& seen() const { return seen_; }

 private:
  Operations seen_;
};

TrainingTask task_for(std::int64_t heads) {
  return {.config = {.n_layer = 4,
                     .n_head = heads,
                     .n_embd = 16 * heads,
                     .vocab_size = 61,
                     .n_positions = 16},
          .batch_size = 8,
          .grad_clip = 0.5,
          .dropout = 0.1,
          .bucket_size = "4KiB"};
}

/// Returns the operations of every rank in one step.
std::vector<Operations> operations_of(const TrainingTask& task, const MemoryChoice& choice) {
  std::mutex mutex;
  std::map<int, std::shared_ptr<Counter>> counters;
  std::vector<Operations> by_rank(static_cast<std::size_t>(task.options().parallel.mesh().size()));
  const auto run = [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun training(task, choice, device, {}, ranks);
    training.step();
    const std::lock_guard lock(mutex);
    by_rank[static_cast<std::size_t>(ranks.rank())] = counters.at(ranks.rank())->seen();
  };
  on_mesh(task, choice, DeviceKind::cpu, run, {.monitor = [&](int rank) {
            const std::lock_guard lock(mutex);
            return counters[rank] = std::make_shared<Counter>();
          }});
  return by_rank;
}

/// Returns a plan's traffic of the shards at one stage of the pipeline.
TensorTraffic planned(const TrainingTask& task, const MemoryChoice& choice, int stage) {
  const auto setup = task.setup(DeviceKind::cpu, choice);
  const auto parts = setup.pipeline ? setup.pipeline->parts_of(stage)
                                    : std::vector<DecoderPart>{{0, task.config.n_layer}};
  TensorTraffic traffic;
  for (const DecoderPart& part : parts)
    traffic +=
        tensor_traffic(task.config, part, choice,
                       {.shards = {.ranks = task.tp, .divide_tokens = task.sequence_parallel},
                        .stash = setup.pipeline ? setup.pipeline->stash : Stash::graph,
                        .rows = choice.micro_batch,
                        .seq_len = task.seq_len,
                        .dtype = task.dtype,
                        .micro_batches = task.batch_size / task.dp.value_or(1) / choice.micro_batch,
                        .orthogonalizes = task.optimizer == "muon"});
  return traffic;
}

struct Row {
  const char* name;
  std::int64_t dp, pp, tp;
  bool divided = false;
  const char *pipeline = "", *stash = "graph";
  Recompute recompute = Recompute::none;
  std::int64_t key_value_heads = 0;  ///< 0: as many as query heads
};

const std::vector<Row> rows{
    {"replicas", 2, 1, 2},
    {"four shards", 2, 1, 4},
    {"blocks again", 2, 1, 2, false, "", "graph", Recompute::block},
    {"parts of blocks again", 2, 1, 2, true, "", "graph", Recompute::gelu_ln},
    {"stages", 1, 2, 2, false, "1f1b"},
    {"stages of inputs", 1, 2, 2, false, "interleaved", "input", Recompute::block},
    {"divided tokens", 2, 1, 4, true},
    {"divided tokens, blocks again", 2, 1, 2, true, "", "graph", Recompute::block},
    {"divided tokens of stages", 1, 2, 2, true, "interleaved", "input", Recompute::block},
    {"shared heads", 2, 1, 4, false, "", "graph", Recompute::none, 1},
    {"shared heads of stages", 1, 2, 2, true, "1f1b", "input", Recompute::block, 1},
};

TrainingTask task_of(const Row& row, std::int64_t heads) {
  TrainingTask task = task_for(heads);
  task.config.n_kv_head = row.key_value_heads;
  task.dp = row.dp;
  task.pp = row.pp;
  task.tp = row.tp;
  task.sequence_parallel = row.divided;
  task.pipeline = row.pipeline;
  task.virtual_stages = task.pipeline == "interleaved" ? 2 : 1;
  task.stash = row.stash;
  return task;
}

Kind shared_forward(const TensorTraffic& plan) {
  Kind forward = plan.key_values.forward;
  return forward += plan.key_values.again;
}

MemoryChoice choice_of(const Row& row, const TrainingTask& task, StateLayout layout) {
  MemoryChoice choice = task.resident(layout, 2);
  choice.placement.set_recompute(row.recompute);
  return choice;
}

}  // namespace

TEST_CASE("shards send each other what plans say, and nothing else",
          "[ranks][tensor][plan][threads]") {
  for (const Row& row : rows) {
    INFO(row.name);
    TrainingTask task = task_of(row, 4);
    if (row.key_value_heads > 0 || row.dp == 1) task.optimizer = "muon";
    const MemoryChoice choice = choice_of(row, task, StateLayout::fp32);
    const auto seen = operations_of(task, choice);
    const Mesh mesh = task.options().parallel.mesh();
    for (int rank = 0; rank < mesh.size(); ++rank) {
      CAPTURE(rank);
      Operations found = seen[static_cast<std::size_t>(rank)];
      const auto taken = [&](const std::string& what) {
        const Kind kind = found[what];
        found.erase(what);
        return kind;
      };
      const TensorTraffic plan = planned(task, choice, mesh.stage(rank));
      const std::string sum = row.divided ? "reduce_scatter " : "all_reduce ";
      Kind forward = plan.sums.forward, backward = plan.sums.backward;
      Kind outputs = taken(sum + "output");
      CHECK((outputs += taken(sum + "embedding")) == (forward += plan.sums.again));
      CHECK(taken(sum + "input gradient") == (backward += plan.sums.head));
      Kind streams = taken("all_gather input");
      CHECK((streams += taken("all_gather output gradient")) == plan.all_streams());
      CHECK(taken("all_gather key and value") == shared_forward(plan));
      CHECK(taken("reduce_scatter key and value gradient") == plan.key_values.backward);
      CHECK(taken("all_reduce norm gradient") == plan.norms);
      CHECK(taken("all_gather softmax") == plan.softmax);
      CHECK((plan.updates.operations > 0) == (task.optimizer == "muon"));
      CHECK(taken("all_reduce orthogonalization") == plan.updates);
      for (const auto& [what, kind] : found)
        FAIL_CHECK(what << " is not in the plan: " << kind.operations << " operations");
    }
  }
}

TEST_CASE("one all-reduce for each pair of products and direction", "[ranks][tensor][threads]") {
  TrainingTask task = task_for(4);
  task.dp = 2;
  task.tp = 2;
  // 4 micro-batches of one sequence for each replica, 4 blocks of 2 pairs; the head is half a pair,
  // as is the embedding.
  const std::uint64_t bytes = 16 * 64 * 4;
  for (const Operations& seen : operations_of(task, task.resident())) {
    REQUIRE(seen.size() == 4);
    CHECK(seen.at("all_reduce output") == Kind{4 * 8, 4 * 8 * bytes});
    CHECK(seen.at("all_reduce embedding") == Kind{4, 4 * bytes});
    CHECK(seen.at("all_reduce input gradient") == Kind{4 * 9, 4 * 9 * bytes});
    CHECK(seen.at("all_gather softmax") == Kind{4, 4 * 16 * 3 * 2 * 4});
  }
}

TEST_CASE("the memory of every shard is planned to the byte", "[ranks][tensor][plan][threads]") {
  for (std::int64_t place = 0; const Row& row : rows)
    for (const std::int64_t heads : {4, 5}) {
      CAPTURE(row.name, heads);
      // Ranks share 5 heads unevenly.
      if (!in_form(2, {heads, place++ / 2})) continue;
      TrainingTask task = task_of(row, heads);
      // And one of the types with each row, the other with the next.
      const bool wide = in_form(2, {place / 4});
      if (wide)
        CHECK(unplanned_memory(task, choice_of(row, task, StateLayout::fp32)) ==
              std::vector<std::string>());
      if (wide && !long_form()) continue;
      task.dtype = DType::bf16;
      task.zero = row.dp > 1 ? 1 : 0;
      if (place % 2 == 0) {
        task.optimizer = "muon";
        CHECK(unplanned_memory(task, choice_of(row, task, StateLayout::split)) ==
              std::vector<std::string>());
        task.optimizer = "adamw";
      }
      CHECK(unplanned_memory(task, choice_of(row, task, StateLayout::bf16m)) ==
            std::vector<std::string>());
    }
}

}  // namespace sluice::test::tensor_parallel_test
