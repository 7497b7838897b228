#include "apps/report/pipeline_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/progress.h"
#include "apps/cli/sizes.h"
#include "apps/output/output_file.h"
#include "apps/plan/cost/scaling.h"
#include "apps/plan/cost/stage_times.h"
#include "apps/plan/cost/weight_streaming.h"
#include "engine/io/durable.h"
#include "parallel/pipeline/schedule_text.h"
#include "parallel/pipeline/validator.h"

namespace sluice {
namespace {

// The first lines of the files, by which plan knows them as its own.
constexpr const char* csv_mark = "# written by plan --schedule-csv\n";
constexpr const char* svg_mark = "<!-- written by plan --schedule-svg -->\n";

std::int64_t count_of(const std::vector<Parameter>& parameters) {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters)
    count += element_count(parameter.shape);
  return count;
}

std::vector<StageCosts> costs_of(const PipelinePlan& plan, const RunSetup& setup,
                                 const DeviceProfile& profile, const Interconnect& interconnect,
                                 const MemoryChoice& choice, const Shards& shards) {
  const StepWork work{.batch = choice.micro_batch,
                      .seq_len = setup.trainer.seq_len,
                      .dtype = setup.precision.dtype,
                      .shards = shards,
                      .dropout = setup.trainer.drops_attention(),
                      .splits_backward = splits_backward(plan.schedule)};
  std::vector<StageCosts> costs;
  for (const StageTime& time :
       stage_times(setup.config, {plan.parts, plan.rank_of_stage, plan.stash}, choice, work,
                   profile, interconnect))
    costs.push_back(time.costs);
  return costs;
}

std::string_view without_suffix(std::string_view name) {
  constexpr std::string_view suffix = ".weight";
  if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  return name;
}

std::string blocks_of(const DecoderConfig& config, const std::vector<DecoderPart>& parts,
                      std::size_t stage) {
  const auto& [first, last] = parts[stage];
  std::string text = last - first == 1 ? fmt::format("block {}", first)
                                       : fmt::format("blocks {} to {}", first, last - 1);
  const DecoderNames& names = names_of(config.family);
  const std::string_view table = without_suffix(names.table);
  if (stage == 0 && !config.rotary)
    text = fmt::format("{}, {}", without_suffix(names.positions), text);
  if (stage == 0) text = fmt::format("{}, {}", table, text);
  if (stage + 1 != parts.size()) return text;
  text += fmt::format(", {}", names.final_norm);
  if (!config.tied) return text + fmt::format(", {}", without_suffix(names.head));
  if (stage > 0) text += fmt::format(", {} (a copy)", table);
  return text;
}

/// Bytes that a rank sends to neighbouring stages per step.
std::uint64_t sent_by(const std::vector<Action>& actions, std::size_t message) {
  return message * static_cast<std::uint64_t>(std::ranges::count_if(actions, [](const Action& a) {
           return a.kind == Action::Kind::send_output || a.kind == Action::Kind::send_gradient;
         }));
}

std::vector<Figures> stage_rows(const PipelinePlan& plan, const DecoderConfig& config,
                                const std::vector<StageCosts>& costs, const Mesh& mesh) {
  std::vector<Figures> rows;
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    const DecoderPart& part = plan.parts[i];
    // The rank is the first of those that divide the stage. Parameters are those of all of them;
    // the tied table counts for the first stage and for the last.
    rows.push_back(
        {{"", i, {"stage", 5}},
         {"rank", plan.rank_of_stage[i] * mesh.tp, {"rank", 5}},
         {"first_block", part.first},
         {"blocks", part.last - part.first},
         {"parameters", count_of(Decoder(config).parameters({part})), {"parameters", 13}},
         {"forward_seconds", costs[i].forward, {"forward ms", 11, "{:.3f}", in_ms}},
         {"backward_seconds", costs[i].backward, {"backward ms", 11, "{:.3f}", in_ms}},
         {"message_seconds", costs[i].send, {"message ms", 11, "{:.3f}", in_ms}},
         {"", blocks_of(config, plan.parts, i), {"holds"}}});
  }
  return rows;
}

/// The ranks of the first replica, stage by stage.
std::vector<Figures> rank_rows(const TrainConfig& o, const RunSetup& setup,
                               const DeviceProfile& profile, const Interconnect& interconnect,
                               const MemoryChoice& choice) {
  const PipelinePlan& plan = *setup.pipeline;
  const Mesh mesh = o.parallel.mesh();
  const ScheduleFacts facts = validate(plan.schedule);
  const Budgets budgets = budgets_of(o.memory, o.parallel, profile);
  std::vector<Figures> rows;
  for (int number = 0; number < mesh.pp * mesh.tp; ++number) {
    const int place = mesh.stage(number);
    const auto i = static_cast<std::size_t>(place);
    // The parameters count the tied table once.
    const auto parameters = Decoder(setup.config, {.rank = mesh.shard(number), .size = mesh.tp})
                                .parameters(plan.parts_of(place));
    std::vector<int> stages;
    for (std::size_t stage = 0; stage < plan.rank_of_stage.size(); ++stage)
      if (plan.rank_of_stage[stage] == place) stages.push_back(static_cast<int>(stage));
    std::string holds = fmt::format("{}", fmt::join(stages, ", "));
    const MemoryPlan memory = plan_memory(o, setup, choice, profile.workspace, {mesh, number});
    const std::size_t excess = budgets.device_excess(memory.high_water);
    if (excess > 0) holds += fmt::format("; {} bytes more than allowed", excess);
    const Traffic traffic =
        traffic_of(parameters, choice, setup.precision.dtype, o.parallel, profile.gpu);
    const auto reduced = static_cast<std::uint64_t>(
        predict_communication(traffic, o.parallel.dp.value_or(1), interconnect.link, {},
                              reductions_of(plan.schedule.ranks[i], plan.parts))
            .bytes());
    const std::size_t message = message_bytes(setup, choice.micro_batch);
    const std::uint64_t sent = sent_by(plan.schedule.ranks[i], message);
    rows.push_back({{"", number, {"rank", 5}},
                    {"stages", stages},
                    {"parameters", count_of(parameters), {"parameters", 13}},
                    {"device_bytes", memory.high_water, {"memory bytes", 13}},
                    {"", memory.high_water, {"GiB", 10, "{:.3f}", in_gib}},
                    {"device_peak_bytes", memory.peak},
                    {"host_bytes", memory.host},
                    {"bytes_above_budget", excess},
                    {"live_micro_batches", facts.live[i], {"live", 10}},
                    {"received_messages", facts.received[i], {"received", 10}},
                    {"bytes_sent", sent, {"sent MiB", 10, "{:.1f}", in_mib}},
                    {"bytes_reduced", reduced, {"reduced MiB", 11, "{:.1f}", in_mib}},
                    {"", holds, {"stages"}}});
  }
  return rows;
}

StashedInputs stashed_inputs(const RunSetup& setup, const MemoryChoice& choice) {
  const PipelinePlan& plan = *setup.pipeline;
  if (plan.stash != Stash::input) return {};
  const auto count =
      static_cast<std::size_t>((plan.schedule.stages - 1) * plan.schedule.micro_batches);
  const std::size_t all = count * message_bytes(setup, choice.micro_batch);
  const std::size_t staying = std::min(all, plan.max_stashed.value_or(all));
  return {.kept = static_cast<double>(all), .resting = static_cast<double>(all - staying)};
}

/// Adds what the weights that rest in host memory cost, and compares with a model that needs no
/// offload, recompute or update.
void report_weights(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile,
                    const Interconnect& interconnect, const Plan& chosen, PipelineReport& made) {
  const MemoryChoice& choice = chosen.choice;
  const StashedInputs inputs = stashed_inputs(setup, choice);
  const Shards shards = shards_of(o.planning, o.parallel, profile);
  DeviceProfile shared = profile;  // the ranks of a machine share its memory's bandwidth
  shared.host_rate /= static_cast<double>(ranks_of_node(o.planning, o.parallel));
  const std::int64_t replicas = o.parallel.dp.value_or(1);
  const double gradients = static_cast<double>(setup.config.block_matrices()) *
                           choice.gradient_bytes() / static_cast<double>(shards.ranks);
  const BlockSum summing{
      .seconds = predict_communication(
                     {.wide_gradients = gradients,
                      .bucket = static_cast<double>(o.parallel.bucket_bytes(profile.gpu))},
                     replicas, interconnect.among(replicas * shards.ranks, shards.ranks), {}, 1)
                     .gradient_seconds,
      .overlap = o.parallel.overlap};
  const WeightStreaming streaming = predict_weight_streaming(
      setup.config, choice,
      {.batch = o.batch.size / replicas,
       .seq_len = setup.trainer.seq_len,
       .dtype = setup.precision.dtype,
       .cpu_state = static_cast<double>(chosen.memory.cpu_state + chosen.memory.file),
       .table_moments = o.optimizer.kind == OptimizerKind::sgd ? 4.0 : 8.0,
       .file_state = static_cast<double>(chosen.memory.file),
       .shards = shards,
       .dropout = setup.trainer.drops_attention()},
      inputs, shared, summing);
  const PartTime once =
      predict_part(setup.config, {0, setup.config.n_layer}, without_recompute(choice),
                   {.batch = choice.micro_batch,
                    .seq_len = setup.trainer.seq_len,
                    .dtype = setup.precision.dtype,
                    .shards = shards,
                    .dropout = setup.trainer.drops_attention()},
                   profile);
  const double passes = (once.forward + once.backward) *
                        static_cast<double>(o.batch.size / replicas / choice.micro_batch);
  const double computing = made.seconds;
  made.seconds += streaming.stall;
  made.report.row(
      "weights", fmt::format("{} of {} blocks are in host memory: {} to the GPU and {} back a step",
                             choice.count(Residency::host), setup.config.n_layer,
                             format_bytes(static_cast<std::uint64_t>(streaming.to_device)),
                             format_bytes(static_cast<std::uint64_t>(streaming.to_host))));
  if (replicas > 1)
    made.report.row(
        "", fmt::format("replicas sum the gradients of a block in {:.4g} s", summing.seconds));
  made.report.row(
      "", fmt::format("the CPU updates {} in {:.4g} s; {:.4g} s of copies and updates are "
                      "not hidden",
                      choice.placement.offload_embeddings ? "them, embeddings and head" : "them",
                      streaming.update, streaming.stall));
  made.report.row(
      "",
      fmt::format("{:.2f} of the speed of plain forward and backward passes, {:.2f} with the "
                  "recomputed ones counted",
                  passes / made.seconds, computing / made.seconds),
      {{"weights",
        {{"bytes_to_device", streaming.to_device},
         {"bytes_to_host", streaming.to_host},
         {"update_seconds", streaming.update},
         {"stall_seconds", streaming.stall},
         {"summing_seconds", summing.seconds},
         {"of_plain_passes", passes / made.seconds},
         {"of_all_passes", computing / made.seconds}}}});
}

}  // namespace

PipelineReport report_pipeline(const TrainConfig& o, const RunSetup& setup,
                               const DeviceProfile& profile, const Interconnect& interconnect,
                               const Plan& chosen) {
  const MemoryChoice& choice = chosen.choice;
  const auto percent = [](double part) { return fmt::format("{:.1f} %", 100 * part); };
  const PipelinePlan& plan = *setup.pipeline;
  const Schedule& schedule = plan.schedule;
  const Mesh mesh = o.parallel.mesh();
  PipelineReport made{.costs = costs_of(plan, setup, profile, interconnect, choice,
                                        shards_of(o.planning, o.parallel, profile))};
  const std::string shape = to_string(o.parallel.schedule());
  Report report;
  report.row("pipeline",
             fmt::format("{}: {} stages on {} ranks, {} micro-batches; proved to run to its end\n",
                         shape, schedule.stages, mesh.pp * mesh.tp, schedule.micro_batches),
             {{"schedule", shape}});
  if (mesh.tp > 1)
    report.text += fmt::format(
        "rows are those of the first of {} ranks that divide each stage's matrices\n\n", mesh.tp);
  report.text += to_grid(schedule);
  report.table("stages", stage_rows(plan, setup.config, made.costs, mesh));
  report.table("ranks", rank_rows(o, setup, profile, interconnect, choice));
  report.figures += {{"micro_batches", schedule.micro_batches}};

  const std::size_t message = message_bytes(setup, choice.micro_batch);
  std::uint64_t sent = 0;
  for (const auto& actions : schedule.ranks)
    sent += static_cast<std::uint64_t>(mesh.tp) * sent_by(actions, message);
  report.text += "\n";
  report.row("messages",
             fmt::format("{} bytes each, {:.1f} MiB a step between stages", message, mib(sent)),
             {{"message_bytes", message}, {"bytes_between_stages", sent}});

  if (setup.config.tied) {
    const std::string_view name = names_of(setup.config.family).table;
    // If several ranks divide the table, its bytes are those of shard 0.
    const int first = plan.rank_of_stage.front() * mesh.tp,
              last = plan.rank_of_stage.back() * mesh.tp;
    const std::uint64_t table =
        first == last ? 0
                      : static_cast<std::uint64_t>(vocabulary_counts(setup.config, mesh.tp)[0] *
                                                   setup.config.n_embd) *
                            size_of(accumulator_of(setup.precision.dtype));
    report.row(
        "tied table",
        first == last ? fmt::format("{}, both ends on rank {}", name, first)
                      : fmt::format("{} on ranks {} and {}, which add its gradients up: {:.1f} MiB "
                                    "each way a step",
                                    name, first, last, mib(table)),
        {{"tied_table", {{"name", name}, {"ranks", {first, last}}, {"bytes_each_way", table}}}});
  }

  const Simulation simulation = simulate(schedule, made.costs);
  const BubbleSplit bubble = split_bubble(schedule, made.costs);
  made.seconds = simulation.makespan;
  report.row("bubble", percent(bubble.schedule) + " if all stages cost the same");
  report.row("",
             fmt::format("{} predicted: imbalance of the stages {:+.1f}, messages {:+.1f}; forward "
                         "and backward of a step {:.4g} s",
                         percent(simulation.bubble()), 100 * bubble.imbalance,
                         100 * bubble.communication, simulation.makespan),
             {{"bubble",
               {{"equal_stages", bubble.schedule},
                {"imbalance", bubble.imbalance},
                {"messages", bubble.communication},
                {"predicted", simulation.bubble()}}},
              {"compute_seconds", simulation.makespan}});
  // In a layer-major pipeline each block is a stage of the one rank, like all others.
  if (plan.layer_major)
    made.report.row("layer-major", fmt::format("{} micro-batches go through one block after the "
                                               "other: {:.4g} s forward and backward",
                                               schedule.micro_batches, simulation.makespan));
  else
    made.report.text += report.text;
  made.report.figures += report.figures;
  if (choice.offloads_weights()) report_weights(o, setup, profile, interconnect, chosen, made);
  return made;
}

void declare_schedule_files(CommandLine& line, TrainConfig& o) {
  add_output_file(line, "--schedule-svg", o.planning.schedule_svg, "a picture of --schedule-svg",
                  begins_with({svg_mark}),
                  "Write a picture of the pipeline's schedule (--pp) to this file");
  add_output_file(line, "--schedule-csv", o.planning.schedule_csv, "a file of --schedule-csv",
                  begins_with({csv_mark}),
                  "Write what each rank of the pipeline does to this file, as --pipeline reads it");
}

void write_schedule(const TrainConfig& o, const RunSetup& setup,
                    const std::vector<StageCosts>& costs) {
  const auto write = [&](const char* flag, const std::string& file, const char* mark, auto&& make) {
    if (file.empty()) return;
    if (!setup.pipeline)
      fail(fmt::format("{} {}: there is no schedule without --pp or --pipeline", flag, file),
           ErrorKind::usage);
    const std::string text = mark + make(setup.pipeline->schedule);
    write_file_durably(file, std::as_bytes(std::span(text)));
  };
  write("--schedule-csv", o.planning.schedule_csv, csv_mark, to_csv);
  write("--schedule-svg", o.planning.schedule_svg, svg_mark, [&](const Schedule& schedule) {
    std::vector<StageCosts> milliseconds;
    for (const auto& [forward, backward, send, weights] : costs)
      milliseconds.push_back({forward * 1e3, backward * 1e3, send * 1e3, weights * 1e3});
    return to_svg(schedule, simulate(schedule, milliseconds),
                  to_string(o.parallel.schedule()) + ", milliseconds");
  });
}

}  // namespace sluice
