#include "apps/plan/cluster/cluster_fit.h"

#include <algorithm>

#include "apps/plan/memory_flags.h"
#include "apps/plan/planner.h"
#include "models/lora/frozen_weights.h"

namespace sluice {
namespace {

/// Up to this number of stages x micro-batches, a plan counts all micro-batches of a pipeline.
constexpr std::int64_t max_counted = 1 << 16;

/// Returns a smaller number of micro-batches that needs nearly the same memory as all: under these
/// schedules a rank holds no more of them at a time, and each further one adds only its token ids.
std::int64_t few_micro_batches(const ClusterCandidate& candidate) {
  const bool bounded = candidate.pipeline == ScheduleName::one_forward_one_backward ||
                       candidate.pipeline == ScheduleName::interleaved;
  if (!bounded) return candidate.micro_batches;
  return std::min(candidate.micro_batches,
                  2 * candidate.mesh.pp + candidate.micro_batches % candidate.mesh.pp);
}

/// Returns all micro-batches if they can be counted quickly, else few_micro_batches().
std::int64_t counted_micro_batches(const ClusterCandidate& candidate) {
  const bool quick =
      candidate.mesh.pp * candidate.virtual_stages * candidate.micro_batches <= max_counted;
  return quick ? candidate.micro_batches : few_micro_batches(candidate);
}

TrainConfig options_of(const ClusterTask& task, const ClusterCandidate& candidate,
                       std::int64_t micro_batches) {
  TrainConfig o = options_of(candidate, task.options);
  o.batch.size = candidate.mesh.dp * candidate.choice.micro_batch * micro_batches;
  o.memory.state_layout = candidate.choice.layout;
  o.memory.gradients = candidate.choice.narrow_gradients ? DType::bf16 : DType::f32;
  return o;
}

RunSetup setup_of(const ClusterTask& task, const TrainConfig& o) {
  RunSetup setup = resolve_shape(o, task.profile.gpu, task.profile.capability, task.profile.name);
  setup.precision = task.precision;
  setup.layouts = task.layouts;
  return setup;
}

/// Returns the ranks whose memory has to be counted. If blocks are divided evenly, the ends of a
/// pipeline need the most: the first stage holds the most micro-batches, the last has the head. Of
/// all shards, shard 0 needs the most.
std::vector<int> counted_ranks(const Mesh& mesh, const TrainConfig& o) {
  std::vector<int> ranks{0};
  for (int place = 1; place < mesh.pp; ++place)
    if (place + 1 == mesh.pp || o.parallel.split != "blocks")
      ranks.push_back(mesh.rank(0, place, 0));
  return ranks;
}

/// Returns the bytes of rank 0's weights and gradients, which stay on the device, if `replicas`
/// divide the gradients.
double weights_and_gradients(const ClusterTask& task, const ClusterCandidate& candidate,
                             const RunSetup& setup, int replicas) {
  Decoder model(task.config, {.size = candidate.mesh.tp});
  const std::vector<DecoderPart> parts = setup.pipeline
                                             ? setup.pipeline->parts_of(0)
                                             : std::vector<DecoderPart>{{0, task.config.n_layer}};
  double trained = 0;
  for (const Parameter& parameter : model.parameters(parts))
    trained += static_cast<double>(element_count(parameter.shape));
  const DType dtype = task.precision.dtype;
  return trained *
             (candidate.choice.gradient_bytes() / replicas + static_cast<double>(size_of(dtype))) +
         frozen_bytes(model, parts, dtype);
}

void add_time(const ClusterTask& task, ClusterCandidate& candidate, const TrainConfig& o,
              const RunSetup& setup) {
  MemoryChoice bare = without_recompute(candidate.choice);
  bare.micro_batch = 1;
  const Mesh replica{.pp = candidate.mesh.pp, .tp = candidate.mesh.tp};
  const MemoryPlan held = plan_state(o, setup, bare, task.profile.workspace, {replica});
  // As in the planner, state is what is held permanently, less weights and gradients.
  const double state =
      static_cast<double>(held.high_water) - weights_and_gradients(task, candidate, setup, 1);
  candidate.time =
      predict_candidate(task, candidate, std::max(0.0, state), static_cast<double>(held.host));
  candidate.tokens_per_second =
      static_cast<double>(task.options.batch.size * task.seq_len) / candidate.time.total();
}

}  // namespace

std::size_t count_memory(const ClusterTask& task, ClusterCandidate& candidate) {
  const TrainConfig o = options_of(task, candidate, counted_micro_batches(candidate));
  const Budgets budgets = budgets_of(o.memory, o.parallel, task.profile);
  const RunSetup setup = setup_of(task, o);
  candidate.memory = {};
  std::size_t most = 0;
  for (const int rank : counted_ranks(candidate.mesh, o)) {
    const MemoryPlan memory =
        plan_memory(o, setup, candidate.choice, task.profile.workspace, {candidate.mesh, rank});
    const std::size_t excess =
        budgets.device_excess(memory.high_water) + budgets.host_excess(memory.host);
    if (memory.high_water > candidate.memory.high_water) candidate.memory = memory;
    most = std::max(most, excess);
  }
  return most;
}

std::size_t least_excess(const ClusterTask& task, const ClusterCandidate& candidate) {
  const TrainConfig o = options_of(task, candidate, few_micro_batches(candidate));
  const RunSetup setup = setup_of(task, o);
  validate_memory_flags(o, setup, task.profile);
  const double least =
      weights_and_gradients(task, candidate, setup, candidate.zero > 1 ? candidate.mesh.dp : 1);
  return budgets_of(o.memory, o.parallel, task.profile)
      .device_excess(static_cast<std::size_t>(least));
}

ClusterFit fit_candidate(const ClusterTask& task, ClusterCandidate candidate) {
  const TrainConfig o = options_of(task, candidate, few_micro_batches(candidate));
  const RunSetup setup = setup_of(task, o);
  DeviceProfile profile = task.profile;
  profile.host_rate = 0;  // with many GPUs in a host, each has few CPU cores
  const Attempt attempt = try_plan(o, setup, profile, counted_ranks(candidate.mesh, o));
  if (!attempt.plan) {
    candidate.choice = attempt.nearest;
    return {.candidate = std::move(candidate), .excess = attempt.excess};
  }
  candidate.choice = attempt.plan->choice;
  candidate.memory = attempt.plan->memory;
  if (candidate.mesh.pp > 1)
    if (const std::size_t excess = count_memory(task, candidate); excess > 0)
      return {.candidate = std::move(candidate), .excess = excess};
  add_time(task, candidate, o, setup);
  return {.candidate = std::move(candidate), .fits = true};
}

}  // namespace sluice
