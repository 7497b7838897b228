#include "apps/report/scaling_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/sizes.h"
#include "apps/report/shared_parts.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t max_predicted = 1 << 16;

std::int64_t ranks_of(const TrainConfig& o) {
  return o.parallel.dp.value_or(1);
}
std::int64_t rank_batch(const TrainConfig& o) {
  return o.batch.size / ranks_of(o);
}

Figures communication_figures(const Communication& c) {
  return {{"gradient_bytes_sent", std::llround(c.gradient_bytes)},
          {"weight_bytes_sent", std::llround(c.weight_bytes)},
          {"messages", c.messages},
          {"seconds", c.seconds()},
          {"exposed_seconds", c.exposed}};
}

std::string communication_text(const ScalingRow& row, bool divided) {
  const Communication& c = row.weak.communication;
  // Another table shows the traffic between the ranks of one replica.
  const char* const one = divided ? "replica" : "rank";
  return fmt::format(
      "communication  {:.1f} MiB sent per rank a step (gradients {:.1f}, weights {:.1f}), {:.2f} "
      "ms, {:.2f} ms of it exposed\n{:<14} {:.4g} s a step, {:.0f} tokens/s, {:.1f} % of {} times "
      "one {}'s\n",
      mib(c.bytes()), mib(c.gradient_bytes), mib(c.weight_bytes), c.seconds() * 1e3,
      c.exposed * 1e3, fmt::format("{} {}s", row.ranks, one), row.weak.seconds,
      row.weak.tokens_per_second, row.efficiency * 100, row.ranks, one);
}

Figures scaling_row(const ScalingRow& row) {
  const Communication& c = row.weak.communication;
  Json strong, seconds = "-", speed_up = "-";
  if (row.strong) {
    seconds = row.strong->time.seconds;
    speed_up = row.strong->speed_up;
    strong = {{"batch_per_rank", row.strong->batch},
              {"communication", to_json(communication_figures(row.strong->time.communication))},
              {"step_seconds", seconds},
              {"speed_up", speed_up}};
  }
  return {{"ranks", row.ranks, {"ranks", 6}},
          {"communication", to_json(communication_figures(c))},
          {"", c.bytes(), {"sent MiB", 9, "{:.1f}", in_mib}},
          {"", c.seconds(), {"comm ms", 10, "{:.2f}", in_ms}},
          {"", c.exposed, {"exposed ms", 10, "{:.2f}", in_ms}},
          {"", "|", {"|", 1}},
          {"step_seconds", row.weak.seconds, {"s a step", 9, "{:.4g}"}},
          {"tokens_per_second", row.weak.tokens_per_second, {"tokens/s", 11, "{:.0f}"}},
          {"efficiency", row.efficiency, {"efficiency", 10, "{:.1f} %", in_percent}},
          {"state_bytes", std::llround(row.state)},
          {"", row.state, {"state GiB", 11, "{:.4f}", in_gib}},
          {"", "|", {"|", 1}},
          {"strong", strong},
          {"", seconds, {"s a step", 11, "{:.4g}"}},
          {"", speed_up, {"speed-up", 10, "{:.4g}"}}};
}

}  // namespace

void require_ranks(const TrainConfig& o) {
  const std::int64_t ranks = ranks_of(o);
  if (ranks > max_predicted)
    fail(fmt::format("--dp {}: plans are made for at most {} ranks", ranks, max_predicted),
         ErrorKind::usage);
  if (o.batch.size % ranks != 0)
    fail(fmt::format(
             "--batch-size {} is not divisible by --dp {}: {} * {} = {}; give a multiple of "
             "{}",
             o.batch.size, ranks, o.batch.size / ranks, ranks, o.batch.size / ranks * ranks, ranks),
         ErrorKind::usage);
}

ScalingTask scaling_task(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile,
                         const Plan& chosen) {
  const DType working = setup.precision.dtype;
  // Counts all state on one rank; the rows of the table divide what the ranks of a job share.
  const Mesh replica{.pp = static_cast<int>(o.parallel.pp), .tp = static_cast<int>(o.parallel.tp)};
  MemoryChoice once = chosen.choice;  // without second copies of any state
  for (Placement& block : once.placement.blocks)
    if (block.residency == Residency::speculative) block.residency = Residency::streamed;
  const MemoryPlan held = plan_state(o, setup, once, profile.workspace, {replica});
  // Subtracts weights and gradients like the planner, so that one rank's time equals the plan's.
  const auto parameters = static_cast<double>(parameters_of_shard(setup.config, o.parallel.tp));
  const double gradient_and_weight =
      parameters * (chosen.choice.gradient_bytes() + static_cast<double>(size_of(working)));
  const auto file = static_cast<double>(held.file);
  return {.config = setup.config,
          .choice = chosen.choice,
          .work = {.seq_len = setup.trainer.seq_len,
                   .dtype = working,
                   .resident_state =
                       std::max(0.0, static_cast<double>(held.high_water) - gradient_and_weight) +
                       (profile.gpu ? 0 : file),
                   .streamed_state = static_cast<double>(held.visiting_state),
                   .cpu_state = static_cast<double>(held.cpu_state) + (profile.gpu ? file : 0),
                   .file_state = file,
                   .shards = shards_of(o.planning, o.parallel, profile),
                   .dropout = setup.trainer.drops_attention(),
                   .orthogonalizes = o.optimizer.kind == OptimizerKind::muon},
          .state = static_cast<double>(held.by_use[static_cast<std::size_t>(MemoryUse::state)] +
                                       held.visiting_state + held.cpu_state) +
                   file,
          .profile = profile,
          .interconnect = interconnect_of(o.planning, o.parallel, profile),
          .traffic = traffic_of(
              Decoder(setup.config, {.size = static_cast<int>(o.parallel.tp)}).parameters(),
              chosen.choice, working, o.parallel, profile.gpu)};
}

Report scaling_report(const TrainConfig& o, const ScalingTask& task) {
  const std::int64_t ranks = ranks_of(o);
  Report report;
  if (ranks > 1) {
    const ScalingRow row = predict_row(task, ranks, rank_batch(o), o.batch.size);
    report.text = communication_text(row, o.parallel.tp > 1);
    Figures figures = communication_figures(row.weak.communication);
    figures += {{"ranks", ranks},
                {"batch_per_rank", rank_batch(o)},
                {"step_seconds", row.weak.seconds},
                {"tokens_per_second", row.weak.tokens_per_second},
                {"efficiency", row.efficiency}};
    report.figures += {{"communication", to_json(figures)}};
  }
  if (!o.planning.scaling) return report;
  const Interconnect& joined = task.interconnect;
  const Link beyond = joined.among(joined.ranks_per_node + 1, task.work.shards.ranks);
  report.figures += {{"link", link_json(joined.link)},
                     {"link_beyond_node", link_json(beyond)},
                     {"ranks_per_node", joined.ranks_per_node}};
  std::vector<Figures> rows;
  for (const std::int64_t count : rank_counts(ranks))
    rows.push_back(scaling_row(predict_row(task, count, rank_batch(o), o.batch.size)));
  report.table("scaling", rows,
               fmt::format("predicted for data parallelism{}: up to {} ranks {} each; more: {}\n"
                           "{:38} | {:<44} | {} for all ranks\n",
                           task.traffic.zero ? fmt::format(" with ZeRO-{}", task.traffic.zero) : "",
                           joined.ranks_per_node, spell(joined.link), spell(beyond), "",
                           fmt::format("{} sequences for each rank", rank_batch(o)), o.batch.size));
  return report;
}

}  // namespace sluice
