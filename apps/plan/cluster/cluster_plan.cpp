#include "apps/plan/cluster/cluster_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>

#include "apps/cli/sizes.h"
#include "apps/plan/cost/muon_cost.h"
#include "apps/plan/cost/stage_times.h"
#include "apps/plan/plan_candidates.h"

namespace sluice {
namespace {

/// The largest micro-batch to try, in tokens, as in the planner.
constexpr std::int64_t max_tokens = 1 << 16, max_tokens_of_cpu = 1 << 13;

bool divides(const DecoderConfig& config, std::int64_t ranks) {
  return division_fault(config, static_cast<int>(ranks)).empty();
}

/// A schedule's name (none: no pipeline) and the number of virtual stages per rank.
using Form = std::pair<std::optional<ScheduleName>, std::int64_t>;

std::vector<Form> schedules_of(const TrainConfig& o, std::int64_t layers, int ranks) {
  constexpr auto one_f_one_b = ScheduleName::one_forward_one_backward;
  constexpr auto interleaved = ScheduleName::interleaved;
  if (ranks == 1) return {{std::nullopt, 1}};
  if (o.parallel.pipeline && !o.parallel.pipeline->is(interleaved))
    return {{o.parallel.pipeline->name, 1}};
  std::vector<Form> forms;
  if (!o.parallel.pipeline) forms.push_back({one_f_one_b, 1});
  if (const auto each = o.parallel.schedule().virtual_stages; each > 1)
    return {{interleaved, each}};
  for (std::int64_t each = 2; each * ranks <= layers; ++each)
    if (layers % (each * ranks) == 0) forms.push_back({interleaved, each});
  return forms;
}

std::vector<std::int64_t> micro_batches_of(const ClusterTask& task, std::int64_t share) {
  if (const auto given = task.options.batch.micro_batch)
    return share % *given == 0 ? std::vector{*given} : std::vector<std::int64_t>();
  const std::int64_t most = task.profile.gpu ? max_tokens : max_tokens_of_cpu;
  std::vector<std::int64_t> sizes;
  for (std::int64_t rows = std::min(share, std::max<std::int64_t>(1, most / task.seq_len));
       rows >= 1; --rows)
    if (share % rows == 0) sizes.push_back(rows);
  return sizes;
}

StagePlaces places_of(const ClusterTask& task, const ClusterCandidate& candidate) {
  const int stages = candidate.mesh.pp * static_cast<int>(candidate.virtual_stages);
  StagePlaces places{
      .parts = split_blocks(task.config, stages, parse_block_split(task.options.parallel.split)),
      .stash = task.options.parallel.stashed()};
  for (int stage = 0; stage < stages; ++stage)
    places.rank_of_stage.push_back(stage % candidate.mesh.pp);
  return places;
}

std::vector<DecoderPart> parts_at(const StagePlaces& places, int place) {
  std::vector<DecoderPart> parts;
  for (std::size_t stage = 0; stage < places.parts.size(); ++stage)
    if (places.rank_of_stage[stage] == place) parts.push_back(places.parts[stage]);
  return parts;
}

std::int64_t share_of(const ClusterTask& task, const ClusterCandidate& candidate) {
  return task.options.batch.size / candidate.mesh.dp;
}

StepWork work_of(const ClusterTask& task, const ClusterCandidate& candidate, double resident,
                 double streamed) {
  const Interconnect joined =
      interconnect_of(task.options.planning, task.options.parallel, task.profile);
  return {.batch = share_of(task, candidate),
          .seq_len = task.seq_len,
          .dtype = task.precision.dtype,
          .resident_state = resident,
          .streamed_state = streamed,
          .shards = {candidate.mesh.tp, joined.among_neighbours(candidate.mesh.tp, task.gpus),
                     task.options.parallel.sequence_parallel},
          .dropout = dropout_of(task.options.model, task.config).attention > 0,
          .orthogonalizes = task.options.optimizer.kind == OptimizerKind::muon,
          .splits_backward = candidate.pipeline == ScheduleName::zero_bubble_h1};
}

Traffic traffic_at(const ClusterTask& task, const ClusterCandidate& candidate,
                   const std::vector<DecoderPart>& parts) {
  Traffic traffic =
      traffic_of(Decoder(task.config, {.size = candidate.mesh.tp}).parameters(parts),
                 candidate.choice, task.precision.dtype, task.options.parallel, task.profile.gpu);
  traffic.zero = candidate.zero;
  return traffic;
}

ClusterTime without_pipeline(const ClusterTask& task, const ClusterCandidate& candidate,
                             double resident, double streamed) {
  const ScalingTask one{
      .config = task.config,
      .choice = candidate.choice,
      .work = work_of(task, candidate, resident, streamed),
      .profile = task.profile,
      .interconnect = interconnect_of(task.options.planning, task.options.parallel, task.profile),
      .traffic = traffic_at(task, candidate, {{0, task.config.n_layer}})};
  const RanksTime time = predict_ranks(one, candidate.mesh.dp, share_of(task, candidate));
  const StepTime& step = time.compute;
  return {.compute = step.forward + step.backward + step.recompute + step.tensor,
          .tensor = step.tensor,
          .data = time.communication.exposed,
          .update = step.update,
          .stall = step.stall};
}

PipelineSchedule schedule_of(const ClusterCandidate& candidate) {
  return {.name = *candidate.pipeline, .virtual_stages = candidate.virtual_stages};
}

}  // namespace

std::string to_flags(const ClusterCandidate& candidate, const TrainConfig& o) {
  std::string flags = fmt::format("--dp {} --pp {} --tp {}", candidate.mesh.dp, candidate.mesh.pp,
                                  candidate.mesh.tp);
  if (candidate.mesh.pp > 1) {
    flags += " --pipeline " + to_string(schedule_of(candidate));
    if (o.parallel.split != "blocks") flags += " --pipeline-split " + o.parallel.split;
    if (o.parallel.stash) flags += " --stash " + stash_text(o.parallel);
  }
  if (o.parallel.sequence_parallel) flags += " --sequence-parallel";
  return flags + fmt::format(" --zero {} ", candidate.zero) + to_flags(candidate.choice);
}

TrainConfig options_of(const ClusterCandidate& candidate, const TrainConfig& options) {
  TrainConfig o = options;
  o.parallel.dp = candidate.mesh.dp;
  o.parallel.pp = candidate.mesh.pp;
  o.parallel.tp = candidate.mesh.tp;
  o.parallel.zero = candidate.zero;
  o.batch.micro_batch = candidate.choice.micro_batch;
  o.parallel.pipeline.reset();
  if (candidate.pipeline) o.parallel.pipeline = schedule_of(candidate);
  if (candidate.mesh.pp > 1) return o;
  const TrainConfig usual;
  o.parallel.split = usual.parallel.split;
  o.parallel.stash = usual.parallel.stash;
  o.parallel.max_stash = usual.parallel.max_stash;
  return o;
}

std::vector<Mesh> meshes_of(const ClusterTask& task) {
  const TrainConfig& o = task.options;
  if (task.tp) require_divisible(task.config, static_cast<int>(*task.tp));
  std::vector<Mesh> meshes;
  for (std::int64_t tp = 1; tp <= std::min(task.gpus, task.config.n_head); ++tp) {
    if (task.gpus % tp != 0 || !divides(task.config, tp)) continue;
    if (task.tp ? tp != *task.tp : tp > o.planning.ranks_per_node) continue;
    if (tp == 1 && o.parallel.sequence_parallel) continue;
    const std::int64_t rest = task.gpus / tp;
    for (std::int64_t pp = 1; pp <= std::min(rest, task.config.n_layer); ++pp) {
      if (rest % pp != 0 || (task.pp && pp != *task.pp)) continue;
      if (o.parallel.dp && rest / pp != *o.parallel.dp) continue;
      meshes.push_back({.dp = static_cast<int>(rest / pp),
                        .pp = static_cast<int>(pp),
                        .tp = static_cast<int>(tp)});
    }
  }
  return meshes;
}

std::vector<ClusterCandidate> candidates_of(const ClusterTask& task, const Mesh& mesh) {
  const TrainConfig& o = task.options;
  if (o.batch.size % mesh.dp != 0) return {};
  const std::int64_t share = o.batch.size / mesh.dp, layers = task.config.n_layer;
  std::vector<std::int64_t> zeros{0, 1, 2};
  if (mesh.dp == 1) zeros = {0};
  if (task.zero) zeros = {*task.zero};
  std::vector<ClusterCandidate> candidates;
  for (const auto& [schedule, each] : schedules_of(o, layers, mesh.pp))
    for (const std::int64_t rows : micro_batches_of(task, share)) {
      const std::int64_t count = share / rows;
      if (o.parallel.sequence_parallel && rows * task.seq_len % mesh.tp != 0) continue;
      // The interleaved schedule takes micro-batches in groups of the number of ranks.
      const bool wanted = o.parallel.schedule().virtual_stages > 1;
      if (each > 1 && count % mesh.pp != 0 && !wanted) continue;
      if (mesh.pp > 1 && (count > max_micro_batches || each * mesh.pp * count > max_forwards))
        continue;
      for (const std::int64_t zero : zeros)
        candidates.push_back({.mesh = mesh,
                              .zero = zero,
                              .micro_batches = count,
                              .pipeline = schedule,
                              .virtual_stages = each,
                              .choice = {.micro_batch = rows,
                                         .placement = {.blocks = std::vector<Placement>(
                                                           static_cast<std::size_t>(layers))}}});
    }
  return candidates;
}

namespace {

/// The parts of a pipeline's step that --zero does not change.
struct Computing {
  ClusterTime time{};
  StagePlaces places{};
  std::vector<Cover> covers{};  ///< by place
};

Computing computing_of(const ClusterTask& task, const ClusterCandidate& candidate, double resident,
                       double streamed) {
  const Interconnect joined =
      interconnect_of(task.options.planning, task.options.parallel, task.profile);
  Computing all{.places = places_of(task, candidate),
                .covers = std::vector<Cover>(static_cast<std::size_t>(candidate.mesh.pp))};
  auto& [time, places, covers] = all;
  const StepWork work = work_of(task, candidate, resident, streamed);
  const auto stages =
      stage_times(task.config, places, candidate.choice, work, task.profile, joined);
  const auto ranks = static_cast<double>(candidate.mesh.pp);
  const auto count = static_cast<double>(candidate.micro_batches);

  std::vector<StageCosts> costs, free;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    StageCosts cost = stages[i].costs;
    costs.push_back(cost);
    cost.send = 0;
    free.push_back(cost);
    time.compute += count / ranks * (cost.forward + cost.backward);
    time.tensor += count / ranks * stages[i].tensor;
    Cover& cover = covers[static_cast<std::size_t>(places.rank_of_stage[i])];
    cover.forward += cost.forward;
    // Gradients are complete, and start to be reduced, with the last weights'.
    cover.backward += work.splits_backward ? cost.weights : cost.backward;
  }
  const auto lasts = [&](const std::vector<StageCosts>& given) {
    return makespan(*candidate.pipeline, candidate.mesh.pp,
                    static_cast<int>(candidate.virtual_stages), candidate.micro_batches, given);
  };
  const double without_messages = lasts(free);
  time.bubble = without_messages - time.compute;
  time.messages = lasts(costs) - without_messages;

  const double vocabulary =
      static_cast<double>(vocabulary_counts(task.config, candidate.mesh.tp)[0]);
  if (task.config.tied)
    time.table = joined.between(0, (candidate.mesh.pp - 1) * candidate.mesh.tp)
                     .seconds(vocabulary * static_cast<double>(task.config.n_embd) *
                              static_cast<double>(size_of(accumulator_of(task.precision.dtype))));
  return all;
}

/// Adds what replicas exchange, the update and the traffic of the state.
ClusterTime with_replicas(const ClusterTask& task, const ClusterCandidate& candidate,
                          const Computing& computing, double resident, double streamed) {
  const Interconnect joined =
      interconnect_of(task.options.planning, task.options.parallel, task.profile);
  auto [time, places, covers] = computing;
  const auto blocks_of = [](const DecoderPart& part) { return part.last - part.first; };
  const std::int64_t blocks = std::ranges::max(places.parts | std::views::transform(blocks_of));
  const std::int64_t reductions =
      reductions_of(*candidate.pipeline, candidate.mesh.pp, blocks, candidate.micro_batches);
  // The first and last places hold the embedding table besides their blocks.
  for (const int place : {0, candidate.mesh.pp - 1})
    time.data = std::max(
        time.data, predict_communication(
                       traffic_at(task, candidate, parts_at(places, place)), candidate.mesh.dp,
                       joined.among(task.gpus, candidate.mesh.pp * candidate.mesh.tp),
                       covers[static_cast<std::size_t>(place)], reductions)
                       .exposed);

  const double sharing = candidate.zero > 0 ? static_cast<double>(candidate.mesh.dp) : 1;
  double parameters = 0;
  for (const Parameter& parameter :
       Decoder(task.config, {.size = candidate.mesh.tp}).parameters(parts_at(places, 0)))
    parameters += static_cast<double>(element_count(parameter.shape));
  const double passing =
      candidate.choice.gradient_bytes() + 2 * static_cast<double>(size_of(task.precision.dtype));
  time.update = (2 * resident + parameters * passing) / task.profile.memory_rate / sharing;
  StepWork work = work_of(task, candidate, resident, streamed);
  work.share = 1 / sharing;
  std::int64_t blocks_here = 0;
  for (const DecoderPart& part : parts_at(places, 0))
    blocks_here += blocks_of(part);
  StepTime orthogonalization;
  add_orthogonalization(orthogonalization, task.config, static_cast<double>(blocks_here), work,
                        task.profile);
  time.update += orthogonalization.update;
  time.compute += orthogonalization.tensor;
  time.tensor += orthogonalization.tensor;
  if (streamed > 0)
    time.stall = std::max(
        0.0, streamed / sharing / std::min(task.profile.to_device_rate, task.profile.to_host_rate) -
                 covers[0].forward);
  return time;
}

}  // namespace

ClusterTime predict_candidate(const ClusterTask& task, const ClusterCandidate& candidate,
                              double resident, double streamed) {
  if (candidate.mesh.pp == 1) return without_pipeline(task, candidate, resident, streamed);
  return with_replicas(task, candidate, computing_of(task, candidate, resident, streamed), resident,
                       streamed);
}

std::vector<double> predict_without_state(const ClusterTask& task,
                                          const std::vector<ClusterCandidate>& candidates) {
  std::vector<double> seconds;
  std::optional<Computing> computing;
  for (const ClusterCandidate& candidate : candidates) {
    if (candidate.mesh.pp == 1) {
      seconds.push_back(without_pipeline(task, candidate, 0, 0).total());
      continue;
    }
    if (!computing) computing = computing_of(task, candidate, 0, 0);
    seconds.push_back(with_replicas(task, candidate, *computing, 0, 0).total());
  }
  return seconds;
}

}  // namespace sluice
