#include "apps/report/scaling_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/sizes.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t most_predicted = 1 << 16;

std::int64_t ranks_of(const TrainOptions& o) {
  return o.dp.value_or(1);
}
std::int64_t rank_batch(const TrainOptions& o) {
  return o.batch_size / ranks_of(o);
}

std::string spell(const Link& link) {
  return fmt::format("{:.4g} GB/s and {:.3g} us", link.bandwidth / 1e9, link.latency * 1e6);
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

std::string table_text(const TrainOptions& o, const ScalingTask& task) {
  const Interconnect& joined = task.interconnect;
  std::string text =
      fmt::format("\npredicted for data parallelism{}: up to {} ranks {} each; more: {}\n",
                  task.traffic.zero ? " with ZeRO-1" : "", joined.ranks_per_node,
                  spell(joined.link), spell(joined.among(joined.ranks_per_node + 1)));
  text += fmt::format("{:38} | {:<44} | {}\n", "",
                      fmt::format("{} sequences for each rank", rank_batch(o)),
                      fmt::format("{} for all ranks", o.batch_size));
  text += fmt::format("{:>6} {:>9} {:>10} {:>10} | {:>9} {:>11} {:>10} {:>11} | {:>11} {:>10}\n",
                      "ranks", "sent MiB", "comm ms", "exposed ms", "s a step", "tokens/s",
                      "efficiency", "state GiB", "s a step", "speed-up");
  for (const std::int64_t ranks : rank_counts(ranks_of(o))) {
    const ScalingRow row = predict_row(task, ranks, rank_batch(o), o.batch_size);
    const Communication& c = row.weak.communication;
    const auto strong = [&](auto&& value) {
      return row.strong ? fmt::format("{:.4g}", value(*row.strong)) : std::string("-");
    };
    text += fmt::format(
        "{:>6} {:>9.1f} {:>10.2f} {:>10.2f} | {:>9.4g} {:>11.0f} {:>8.1f} % {:>11.4f} | {:>11} "
        "{:>10}\n",
        ranks, mib(c.bytes()), c.seconds() * 1e3, c.exposed * 1e3, row.weak.seconds,
        row.weak.tokens_per_second, row.efficiency * 100, gib(row.state),
        strong([](const ScalingRow::Strong& s) { return s.time.seconds; }),
        strong([](const ScalingRow::Strong& s) { return s.speed_up; }));
  }
  return text;
}

Json communication_json(const Communication& c) {
  return {{"gradient_bytes_sent", std::llround(c.gradient_bytes)},
          {"weight_bytes_sent", std::llround(c.weight_bytes)},
          {"messages", c.messages},
          {"seconds", c.seconds()},
          {"exposed_seconds", c.exposed}};
}

Json row_json(const ScalingRow& row) {
  Json json{{"ranks", row.ranks},
            {"communication", communication_json(row.weak.communication)},
            {"step_seconds", row.weak.seconds},
            {"tokens_per_second", row.weak.tokens_per_second},
            {"efficiency", row.efficiency},
            {"state_bytes", std::llround(row.state)},
            {"strong", nullptr}};
  if (row.strong)
    json["strong"] = {{"batch_per_rank", row.strong->batch},
                      {"communication", communication_json(row.strong->time.communication)},
                      {"step_seconds", row.strong->time.seconds},
                      {"speed_up", row.strong->speed_up}};
  return json;
}

Json link_json(const Link& link) {
  return {{"bytes_per_second", link.bandwidth}, {"latency_seconds", link.latency}};
}

}  // namespace

void require_ranks(const TrainOptions& o) {
  const std::int64_t ranks = ranks_of(o);
  if (o.scaling && o.pipelined())
    fail("--scaling predicts data parallelism alone; leave --pp and --pipeline out",
         ErrorKind::usage);
  if (o.scaling && o.tp > 1)
    fail("--scaling predicts data parallelism alone; leave --tp out", ErrorKind::usage);
  if (ranks > most_predicted)
    fail(fmt::format("--dp {}: plans are made for at most {} ranks", ranks, most_predicted),
         ErrorKind::usage);
  if (o.batch_size % ranks != 0)
    fail(fmt::format(
             "--batch-size {} is not divisible by --dp {}: {} * {} = {}; give a multiple of "
             "{}",
             o.batch_size, ranks, o.batch_size / ranks, ranks, o.batch_size / ranks * ranks, ranks),
         ErrorKind::usage);
}

ScalingTask scaling_task(const TrainOptions& o, const RunSetup& setup, const DeviceProfile& profile,
                         const Plan& chosen) {
  const DType working = setup.precision.dtype;
  // Counts all state on one rank; the rows of the table divide what the ranks of a job share.
  const Mesh replica{.pp = static_cast<int>(o.pp), .tp = static_cast<int>(o.tp)};
  MemoryChoice once = chosen.choice;  // without second copies of any state
  once.speculative_blocks = 0;
  const MemoryPlan held = plan_state(o, setup, once, profile.workspace, {replica});
  // Subtracts weights and gradients like the planner, so that one rank's time equals the plan's.
  const auto parameters = static_cast<double>(parameters_of_shard(setup.config, o.tp));
  const double gradient_and_weight =
      parameters * (chosen.choice.gradient_bytes() + static_cast<double>(size_of(working)));
  ScalingTask task{
      .config = setup.config,
      .choice = chosen.choice,
      .work = {.seq_len = setup.trainer.seq_len,
               .dtype = working,
               .resident_state =
                   std::max(0.0, static_cast<double>(held.high_water) - gradient_and_weight),
               .streamed_state = static_cast<double>(held.visiting_state),
               .cpu_state = static_cast<double>(held.cpu_state),
               .shards = shards_of(o, profile)},
      .state = static_cast<double>(held.by_use[static_cast<std::size_t>(MemoryUse::state)] +
                                   held.visiting_state + held.cpu_state),
      .profile = profile,
      .interconnect = interconnect_of(o, profile),
      .traffic = traffic_of(GPT2(setup.config, {.size = static_cast<int>(o.tp)}).parameters(),
                            chosen.choice, working)};
  task.traffic.bucket = static_cast<double>(bucket_bytes(o, profile.gpu));
  task.traffic.zero = o.zero > 0;
  task.traffic.overlap = o.overlap;
  return task;
}

std::string scaling_text(const TrainOptions& o, const ScalingTask& task) {
  std::string text;
  if (ranks_of(o) > 1)
    text +=
        communication_text(predict_row(task, ranks_of(o), rank_batch(o), o.batch_size), o.tp > 1);
  if (o.scaling) text += table_text(o, task);
  return text;
}

void add_scaling(Json& json, const TrainOptions& o, const ScalingTask& task) {
  const std::int64_t ranks = ranks_of(o);
  if (ranks > 1) {
    const ScalingRow row = predict_row(task, ranks, rank_batch(o), o.batch_size);
    Json& one = json["communication"] = communication_json(row.weak.communication);
    one["ranks"] = ranks;
    one["batch_per_rank"] = rank_batch(o);
    one["step_seconds"] = row.weak.seconds;
    one["tokens_per_second"] = row.weak.tokens_per_second;
    one["efficiency"] = row.efficiency;
  }
  if (!o.scaling) return;
  json["link"] = link_json(task.interconnect.link);
  json["link_beyond_node"] =
      link_json(task.interconnect.among(task.interconnect.ranks_per_node + 1));
  json["ranks_per_node"] = task.interconnect.ranks_per_node;
  Json& rows = json["scaling"] = Json::array();
  for (const std::int64_t count : rank_counts(ranks))
    rows.push_back(row_json(predict_row(task, count, rank_batch(o), o.batch_size)));
}

}  // namespace sluice
