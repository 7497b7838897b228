#include "apps/report/pipeline_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/sizes.h"
#include "apps/plan/cost/stage_times.h"
#include "engine/io/durable.h"
#include "parallel/pipeline/schedule_text.h"
#include "parallel/pipeline/validator.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t count_of(const std::vector<Parameter>& parameters) {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters)
    count += element_count(parameter.shape);
  return count;
}

std::vector<PipelineReport::Stage> stages_of(const PipelinePlan& plan, const RunSetup& setup,
                                             const DeviceProfile& profile,
                                             const Interconnect& interconnect,
                                             const MemoryChoice& choice, const Shards& shards) {
  const StepWork work{.batch = choice.micro_batch,
                      .seq_len = setup.trainer.seq_len,
                      .dtype = setup.precision.dtype,
                      .shards = shards};
  const auto times = stage_times(setup.config, {plan.parts, plan.rank_of_stage, plan.stash}, choice,
                                 work, profile, interconnect);
  std::vector<PipelineReport::Stage> stages;
  for (std::size_t i = 0; i < plan.parts.size(); ++i)
    stages.push_back({.rank = plan.rank_of_stage[i] * static_cast<int>(shards.ranks),
                      .part = plan.parts[i],
                      .parameters = count_of(GPT2(setup.config).parameters({plan.parts[i]})),
                      .costs = times[i].costs});
  return stages;
}

std::string blocks_of(const PipelineReport& report, std::size_t stage) {
  const auto& [first, last] = report.stages[stage].part;
  std::string text = last - first == 1 ? fmt::format("block {}", first)
                                       : fmt::format("blocks {} to {}", first, last - 1);
  if (stage == 0) text = "wte, wpe, " + text;
  if (stage + 1 == report.stages.size()) text += stage == 0 ? ", ln_f" : ", ln_f, wte (a copy)";
  return text;
}

bool apart(const PipelineReport& report) {
  return report.stages.front().rank != report.stages.back().rank;
}

std::uint64_t all_sent(const PipelineReport& report) {
  std::uint64_t bytes = 0;
  for (const auto& rank : report.ranks)
    bytes += rank.bytes_sent;
  return bytes;
}

std::string stages_text(const PipelineReport& report) {
  std::string text = fmt::format("\n{:>5} {:>5} {:>13} {:>11} {:>11} {:>11}  {}\n", "stage", "rank",
                                 "parameters", "forward ms", "backward ms", "message ms", "holds");
  for (std::size_t i = 0; i < report.stages.size(); ++i) {
    const auto& stage = report.stages[i];
    text += fmt::format("{:>5} {:>5} {:>13} {:>11.3f} {:>11.3f} {:>11.3f}  {}\n", i, stage.rank,
                        stage.parameters, stage.costs.forward * 1e3, stage.costs.backward * 1e3,
                        stage.costs.send * 1e3, blocks_of(report, i));
  }
  return text;
}

std::string ranks_text(const PipelineReport& report) {
  std::string text = fmt::format("\n{:>5} {:>13} {:>13} {:>10} {:>10} {:>10} {:>10} {:>11}  {}\n",
                                 "rank", "parameters", "memory bytes", "GiB", "live", "received",
                                 "sent MiB", "reduced MiB", "stages");
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const auto& r = report.ranks[rank];
    text += fmt::format(
        "{:>5} {:>13} {:>13} {:>10.3f} {:>10} {:>10} {:>10.1f} {:>11.1f}  {}{}\n", rank,
        r.parameters, r.memory.high_water, gib(r.memory.high_water), r.live, r.received,
        mib(r.bytes_sent), mib(r.bytes_reduced), fmt::join(r.stages, ", "),
        r.excess > 0 ? fmt::format("; {} bytes more than allowed", r.excess) : std::string());
  }
  return text;
}

}  // namespace

PipelineReport report_pipeline(const TrainOptions& o, const RunSetup& setup,
                               const DeviceProfile& profile, const Interconnect& interconnect,
                               const MemoryChoice& choice) {
  const PipelinePlan& plan = *setup.pipeline;
  const Mesh mesh = planned_mesh(o);
  PipelineReport report{.name = o.schedule().text(), .schedule = plan.schedule, .shards = mesh.tp};
  report.boundary = message_bytes(setup, choice.micro_batch);
  report.stages = stages_of(plan, setup, profile, interconnect, choice, shards_of(o, profile));
  const ScheduleFacts facts = validate(plan.schedule);
  const Budgets budgets = budgets_of(o, profile);
  for (int number = 0; number < mesh.pp * mesh.tp; ++number) {
    const int place = mesh.stage(number);
    const auto i = static_cast<std::size_t>(place);
    const auto parameters = GPT2(setup.config, {.rank = mesh.shard(number), .size = mesh.tp})
                                .parameters(plan.parts_of(place));
    PipelineReport::Rank rank{
        .parameters = count_of(parameters),
        .live = facts.live[i],
        .received = facts.received[i],
        .memory = plan_memory(o, setup, choice, profile.workspace, {mesh, number})};
    for (std::size_t stage = 0; stage < plan.rank_of_stage.size(); ++stage)
      if (plan.rank_of_stage[stage] == place) rank.stages.push_back(static_cast<int>(stage));
    rank.excess = budgets.device_excess(rank.memory.high_water);
    rank.bytes_sent = report.boundary * static_cast<std::uint64_t>(std::ranges::count_if(
                                            plan.schedule.ranks[i], [](const Action& action) {
                                              return action.kind == Action::Kind::send_output ||
                                                     action.kind == Action::Kind::send_gradient;
                                            }));
    Traffic traffic = traffic_of(parameters, choice, setup.precision.dtype);
    traffic.zero = o.zero > 0;
    traffic.bucket = static_cast<double>(bucket_bytes(o, profile.gpu));
    rank.bytes_reduced = static_cast<std::uint64_t>(
        predict_communication(traffic, o.dp.value_or(1), interconnect.link, {}).bytes());
    report.ranks.push_back(std::move(rank));
  }
  if (apart(report))
    report.table_bytes = static_cast<std::uint64_t>(vocabulary_counts(setup.config, mesh.tp)[0] *
                                                    setup.config.n_embd) *
                         size_of(accumulator_of(setup.precision.dtype));
  std::vector<StageCosts> costs;
  for (const auto& stage : report.stages)
    costs.push_back(stage.costs);
  report.simulation = simulate(plan.schedule, costs);
  report.bubble = split_bubble(plan.schedule, costs);
  return report;
}

std::string pipeline_text(const PipelineReport& report) {
  const auto percent = [](double part) { return fmt::format("{:.1f} %", 100 * part); };
  std::string text = fmt::format(
      "\npipeline     {}: {} stages on {} ranks, {} micro-batches; proved to run to its end\n\n",
      report.name, report.schedule.stages, report.ranks.size(), report.schedule.micro_batches);
  if (report.shards > 1)
    text +=
        fmt::format("rows are those of the first of {} ranks that divide each stage's matrices\n\n",
                    report.shards);
  text += to_grid(report.schedule);
  text += stages_text(report) + ranks_text(report);
  text += fmt::format(
      "\nmessages     {} bytes each, {:.1f} MiB a step between stages\ntied table   {}\n",
      report.boundary, mib(all_sent(report)),
      apart(report)
          ? fmt::format(
                "wte.weight on ranks {} and {}, which add its gradients up: {:.1f} MiB each "
                "way a step",
                report.stages.front().rank, report.stages.back().rank, mib(report.table_bytes))
          : fmt::format("wte.weight, both ends on rank {}", report.stages.front().rank));
  text +=
      fmt::format("bubble       {} if all stages cost the same\n", percent(report.bubble.schedule));
  text += fmt::format(
      "{:<12} {} predicted: imbalance of the stages {:+.1f}, messages {:+.1f}; forward and "
      "backward "
      "of a step {:.4g} s\n",
      "", percent(report.simulation.bubble()), 100 * report.bubble.imbalance,
      100 * report.bubble.communication, report.simulation.makespan);
  return text;
}

Json pipeline_json(const PipelineReport& report) {
  Json json{{"schedule", report.name},
            {"stages", Json::array()},
            {"ranks", Json::array()},
            {"micro_batches", report.schedule.micro_batches},
            {"message_bytes", report.boundary},
            {"bytes_between_stages", all_sent(report)},
            {"tied_table",
             {{"name", "wte.weight"},
              {"ranks", {report.stages.front().rank, report.stages.back().rank}},
              {"bytes_each_way", report.table_bytes}}},
            {"bubble",
             {{"equal_stages", report.bubble.schedule},
              {"imbalance", report.bubble.imbalance},
              {"messages", report.bubble.communication},
              {"predicted", report.simulation.bubble()}}},
            {"compute_seconds", report.simulation.makespan}};
  for (const auto& stage : report.stages)
    json["stages"].push_back({{"rank", stage.rank},
                              {"first_block", stage.part.first},
                              {"blocks", stage.part.last - stage.part.first},
                              {"parameters", stage.parameters},
                              {"forward_seconds", stage.costs.forward},
                              {"backward_seconds", stage.costs.backward},
                              {"message_seconds", stage.costs.send}});
  for (const auto& rank : report.ranks)
    json["ranks"].push_back({{"stages", rank.stages},
                             {"parameters", rank.parameters},
                             {"device_bytes", rank.memory.high_water},
                             {"device_peak_bytes", rank.memory.peak},
                             {"host_bytes", rank.memory.host},
                             {"bytes_above_budget", rank.excess},
                             {"live_micro_batches", rank.live},
                             {"received_messages", rank.received},
                             {"bytes_sent", rank.bytes_sent},
                             {"bytes_reduced", rank.bytes_reduced}});
  return json;
}

void write_schedule(const TrainOptions& o, const PipelineReport* report) {
  const auto write = [&](const char* flag, const std::string& file, auto&& make) {
    if (file.empty()) return;
    if (report == nullptr)
      fail(fmt::format("{} {}: there is no schedule without --pp or --pipeline", flag, file),
           ErrorKind::usage);
    const std::string text = make();
    write_file_durably(file, std::as_bytes(std::span(text)));
  };
  write("--schedule-csv", o.schedule_csv, [&] { return to_csv(report->schedule); });
  write("--schedule-svg", o.schedule_svg, [&] {
    std::vector<StageCosts> costs;
    for (const auto& stage : report->stages)
      costs.push_back(
          {stage.costs.forward * 1e3, stage.costs.backward * 1e3, stage.costs.send * 1e3});
    return to_svg(report->schedule, simulate(report->schedule, costs),
                  report->name + ", milliseconds");
  });
}

}  // namespace sluice
