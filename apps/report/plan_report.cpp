#include "apps/report/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/checkpoint/model_folder.h"
#include "apps/cli/progress.h"
#include "apps/cli/sizes.h"
#include "apps/plan/continued_plan.h"
#include "apps/plan/run_facts.h"
#include "apps/report/cluster_report.h"
#include "apps/report/pipeline_report.h"
#include "apps/report/plan_advice.h"
#include "apps/report/scaling_report.h"
#include "apps/report/shared_parts.h"
#include "apps/report/tensor_report.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The note on the machine comes first for people, and last for programs.
void say_report(const TrainConfig& o, Report report, const std::string& note) {
  Report noted;
  if (!note.empty()) noted.row("note", note, {{"note", note}});
  report.figures += noted.figures;
  // JSON is in ASCII, which printable() leaves unchanged.
  say(o.planning.json
          ? to_json(report.figures).dump(2, ' ', true, Json::error_handler_t::replace) + "\n"
          : noted.text + report.text);
}

/// True for a GPU that is not in this machine.
bool in_any_host(const DeviceProfile& profile) {
  return profile.host_memory >= std::size_t{1} << 45;
}

/// The machine to plan for, and a note if it had to be guessed.
struct Target {
  DeviceProfile profile;
  RunSetup setup;
  std::string note{};
  std::string rates{};  ///< origin of the rates behind predicted times
};

/// Refuses folders of tokens that were made with another tokenizer than the model's, as a run does.
/// A plan may name data that are on another machine.
void require_data_made_for(const TrainConfig& o) {
  const bool folder = !preset(o.model.name) && fs::is_directory(o.model.name);
  const auto tokenizer = !o.data.tokenizer_dir.empty() ? load_tokenizer(o.data.tokenizer_dir)
                         : folder                      ? find_tokenizer(o.model.name)
                                                       : nullptr;
  if (tokenizer == nullptr) return;
  const std::string whose = o.data.tokenizer_dir.empty()
                                ? "--model " + o.model.name
                                : "--tokenizer-dir " + o.data.tokenizer_dir;
  const auto check = [&](const std::string& flag, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      if (fs::exists(name)) require_made_with(flag, find_data(flag, {name}), *tokenizer, whose);
  };
  check("--data", o.data.train);
  check("--val-data", o.data.val);
}

Target find_target(const TrainConfig& o) {
  std::string note;
  std::optional<DeviceProfile> other;
  if (!o.planning.probe.empty()) {
    other = load_profile(o.planning.probe);
  } else if (!o.planning.device_profile.empty()) {
    other = known_profile(o.planning.device_profile);
  } else if (o.memory.gpu && o.machine.device != DeviceKind::cuda &&
             choose_device(o.machine.device) == DeviceKind::cpu) {
    other = known_profile("3090");
    note = "there is no GPU here: times are those of an RTX 3090; --device-profile names others";
  }
  if (other) {
    require_data_made_for(o);
    if (!knows_shape(o))
      fail("planning for another machine needs --model, or --vocab-size with a shape of your own",
           ErrorKind::usage);
    auto setup = resolve_shape(o, other->gpu, other->capability, other->name);
    if (!o.data.train.empty() && !o.batch.seq_len && has_pairs(find_data("--data", o.data.train)))
      note += fmt::format(
          "{}sequences of {} tokens are assumed, and pairs may need fewer: give "
          "--seq-len",
          note.empty() ? "" : "; ", setup.trainer.seq_len);
    return {std::move(*other), std::move(setup), note,
            o.planning.probe.empty() ? "by rates that are assumed" : "by the rates of the probe"};
  }
  const DeviceKind kind = choose_device(o.machine.device);
  const Precision precision = resolve_precision(o.machine.precision, kind);
  DeviceProfile profile = profile_at_hand(kind, precision);
  RunSetup setup = knows_shape(o) && o.data.train.empty()
                       ? resolve_shape(o, profile.gpu, profile.capability, profile.name)
                       : resolve(o);
  setup.precision = precision;
  const bool measured = profile.context > 0;
  return {std::move(profile), std::move(setup), note,
          measured ? "by measured rates"
                   : "by nominal rates (plan --save-probe FILE measures this machine's, --probe "
                     "FILE plans by them)"};
}

std::string time_line(const StepTime& t, const TrainConfig& o, const RunSetup& setup) {
  const double tokens =
      static_cast<double>(o.batch.size) * static_cast<double>(setup.trainer.seq_len);
  return fmt::format(
      "{:.2f} s a step, {:.0f} tokens/s: forward {:.2f}, backward {:.2f}, recompute {:.2f}, update "
      "{:.2f}, stall {:.2f}{}",
      t.total(), tokens / t.total(), t.forward, t.backward, t.recompute, t.update, t.stall,
      o.parallel.tp > 1 ? fmt::format(", other shards {:.2f}", t.tensor) : std::string());
}

/// Names the blocks whose state or inputs leave the device, and those whose gradients do.
std::string streaming_line(const MemoryChoice& choice, const StepTime& time, std::int64_t layers) {
  const std::int64_t staged = choice.streamed_blocks(), by_cpu = choice.count(Residency::cpu);
  std::vector<std::string> parts;
  if (const std::int64_t early = choice.count(Residency::speculative); staged > 0)
    parts.push_back(fmt::format(
        "state of {}{}", staged,
        early > 0 ? fmt::format(" ({} updated during the backward pass)", early) : std::string()));
  if (by_cpu > 0) parts.push_back(fmt::format("gradients of {} (updated by the CPU)", by_cpu));
  if (choice.offloads_inputs())
    parts.push_back(fmt::format("inputs of {}", choice.placement.count(Recompute::block_on_host)));
  return fmt::format("{} each way a step: {} of {} blocks", format_bytes(time.bytes_each_way),
                     fmt::join(parts, ", "), layers);
}

/// Without `timed`, programs do not see the predicted times.
Json plan_json(const Plan& plan, bool timed) {
  return to_json({{"flags", to_flags(plan.choice)},
                  {"device_peak_bytes", plan.memory.peak},
                  {"device_bytes", plan.memory.high_water},
                  {"device_peak_by_use", use_json(plan.memory.by_use)},
                  {"host_bytes", plan.memory.host},
                  {"pinned_bytes", plan.memory.pinned},
                  {"file_bytes", plan.memory.file},
                  {timed ? "predicted_seconds" : "",
                   {{"total", plan.time.total()},
                    {"forward", plan.time.forward},
                    {"backward", plan.time.backward},
                    {"recompute", plan.time.recompute},
                    {"update", plan.time.update},
                    {"stall", plan.time.stall},
                    {"tensor", plan.time.tensor}}},
                  {"bytes_each_way", plan.time.bytes_each_way}});
}

}  // namespace

Report plan_report(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile,
                   const Planned& planned) {
  const MemoryChoice& choice = planned.chosen.choice;
  const MemoryPlan& memory = planned.chosen.memory;
  const StepTime& time = planned.chosen.time;
  const Budgets budgets = budgets_of(o.memory, o.parallel, profile);
  Report report = model_report(profile, setup.config, setup.precision);
  report.row("batch",
             fmt::format("{} sequences x {} tokens in micro-batches of {}", o.batch.size,
                         setup.trainer.seq_len, choice.micro_batch),
             {{"batch_size", o.batch.size}, {"seq_len", setup.trainer.seq_len}});
  report.row("device", profile.name);
  report.text += fmt::format("\n{:<24} {:>14} {:>10}\n",
                             fmt::format("{} memory{}", profile.gpu ? "GPU" : "host",
                                         setup.pipeline || o.parallel.tp > 1 ? ", rank 0" : ""),
                             "bytes", "GiB");
  const auto bytes_row = [&](const std::string& name, std::size_t bytes) {
    if (bytes > 0)
      report.text += fmt::format("  {:<22} {:>14} {:>10.3f}\n", name, bytes, gib(bytes));
  };
  for (std::size_t use = 0; use < memory_uses; ++use)
    bytes_row(std::string(name_of(static_cast<MemoryUse>(use))), memory.by_use[use]);
  bytes_row("between blocks", memory.high_water - memory.peak);
  bytes_row(profile.gpu ? "driver (estimate)" : "process (estimate)",
            budgets.device_reserve - budgets.communication);
  bytes_row("NCCL (assumed)", budgets.communication);
  bytes_row("together", memory.high_water + budgets.device_reserve);
  bytes_row("allowed", budgets.device_allowed);
  if (profile.gpu) {
    report.text += "host memory\n";
    bytes_row(fmt::format("state{}{}", choice.offloads_inputs() ? ", inputs" : "",
                          o.checkpoint.saving == Saving::background ? ", checkpoint" : ""),
              memory.host);
    if (memory.pinned < memory.host) bytes_row("of it pinned", memory.pinned);
    bytes_row("process (estimate)", budgets.host_reserve);
    bytes_row("together", memory.host + budgets.host_reserve);
    if (o.memory.host || !in_any_host(profile)) bytes_row("allowed", budgets.host_allowed);
    if (const std::int64_t ranks = ranks_of_node(o.planning, o.parallel);
        ranks > 1 && memory.host > 0)
      bytes_row(fmt::format("{} ranks of a machine", ranks),
                static_cast<std::size_t>(ranks) * (memory.host + budgets.host_reserve));
  }
  report.text += "\n";
  report.figures += {{"device_budget_bytes", budgets.device_allowed},
                     {"device_reserve_bytes", budgets.device_reserve},
                     {"host_budget_bytes", budgets.host_allowed},
                     {"host_reserve_bytes", budgets.host_reserve}};
  // A plan for one rank with the whole model does not tell how long a pipeline takes.
  const bool timed = !setup.pipeline;
  report.row("flags", to_flags(choice), {{"chosen", plan_json(planned.chosen, timed)}});
  if (!o.memory.state_home.empty())
    report.row("state file", state_file_text(o.memory.state_home, memory.file,
                                             o.parallel.mesh().size() > 1 ? " of rank 0" : ""));
  if (profile.gpu && (choice.offloads_state() || choice.offloads_inputs()))
    report.row("streaming", streaming_line(choice, time, setup.config.n_layer));
  if (timed) report.row("predicted", time_line(time, o, setup));
  Json others = Json::array();
  for (const Plan& other : planned.others) {
    others.push_back(plan_json(other, timed));
    report.row("also fits",
               to_flags(other.choice) +
                   (timed ? fmt::format(" ({:.2f} s a step)", other.time.total()) : ""));
  }
  report.figures += {{"others", others}};
  const std::vector<std::string> advice = plan_advice(o, setup, profile, choice);
  for (const std::string& text : advice)
    report.row("advice", text);
  report.figures += {{"advice", Json(advice)}};
  return report;
}

/// Divides the host memory of this machine between the ranks that would share it, as a run does. A
/// GPU that is not in this machine may be in any host.
void divide_host_memory(const TrainConfig& o, DeviceProfile& profile) {
  if (profile.gpu && !in_any_host(profile))
    profile.host_memory /= static_cast<std::size_t>(ranks_of_node(o.planning, o.parallel));
}

void print_plan(const TrainConfig& asked) {
  require_ranks(asked);
  Target target = find_target(asked);
  require_run(asked, target.setup);
  divide_host_memory(asked, target.profile);
  const auto [planned, o, warning] =
      plan_continued(asked, target.setup, target.profile, expected_record(asked));
  if (!warning.empty()) target.note += (target.note.empty() ? "" : "; ") + warning;
  const ScalingTask task = scaling_task(o, target.setup, target.profile, planned.chosen);
  PipelineReport pipeline;
  if (target.setup.pipeline)
    pipeline = report_pipeline(o, target.setup, target.profile, task.interconnect, planned.chosen);
  write_schedule(o, target.setup, pipeline.costs);
  const std::int64_t replicas = o.parallel.dp.value_or(1);
  WholeRun run{.command = training_command(o, replicas * o.parallel.pp * o.parallel.tp,
                                           to_flags(planned.chosen.choice)),
               .steps = o.batch.steps,
               .step_seconds = replicas > 1 ? predict_ranks(task, replicas, o.batch_share()).seconds
                                            : planned.chosen.time.total(),
               .rates = target.rates};
  if (target.setup.pipeline) {
    run.step_seconds = pipeline.seconds;
    run.rates = "forward and backward alone, " + run.rates;
  }
  const Report whole_run = whole_run_report(run);
  Report report = plan_report(o, target.setup, target.profile, planned);
  report.text += whole_run.text;  // People read it before the details, programs after them.
  if (target.setup.pipeline)
    report.append(pipeline.report, "pipeline");
  else
    report.append(scaling_report(o, task));
  if (o.parallel.tp > 1)
    report.append(tensor_report(o, target.setup, target.profile, planned.chosen.choice), "tensor");
  report.figures += whole_run.figures;
  say_report(o, report, target.note);
}

void print_cluster_plan(const TrainConfig& o, const GivenAxes& given) {
  if (!knows_shape(o))
    fail("--gpus needs --model, or --vocab-size with a shape of your own", ErrorKind::usage);
  require_rules({o}, Known::options);
  // Finds the machine and the model as if nothing were divided.
  TrainConfig alone = o;
  alone.parallel = o.parallel.alone();
  require_data_made_for(o);
  alone.data.train.clear();
  Target target = find_target(alone);
  require_run(o, target.setup);
  if (!target.profile.gpu && o.planning.probe.empty())
    target.note = fmt::format(
        "no card is named, so this plans for {} computers like this one, by their CPUs; name a "
        "card with --device-profile ({}), or a machine with --probe FILE",
        o.planning.gpus, fmt::join(known_profiles(), ", "));
  const auto axis = [](bool is_given, std::int64_t value) {
    return is_given ? std::optional(value) : std::nullopt;
  };
  const ClusterTask task{.options = o,
                         .pp = axis(given.pp, o.parallel.pp),
                         .tp = axis(given.tp, o.parallel.tp),
                         .zero = axis(given.zero, o.parallel.zero),
                         .profile = target.profile,
                         .precision = target.setup.precision,
                         .config = target.setup.config,
                         .seq_len = target.setup.trainer.seq_len,
                         .gpus = o.planning.gpus,
                         .top = o.planning.top};
  const ClusterPlan plan = plan_cluster(task);
  Report report = cluster_report(task, plan);
  if (!plan.candidates.empty())
    report.append(whole_run_report(
        {.command = training_command(o, o.planning.gpus, to_flags(plan.candidates[0], o)),
         .steps = o.batch.steps,
         .step_seconds = plan.candidates[0].time.total(),
         .rates = target.rates}));
  say_report(o, report, target.note);
  if (plan.candidates.empty())
    fail(fmt::format("--gpus {}: nothing fits; the nearest is {}, {} bytes too many",
                     o.planning.gpus, to_flags(*plan.nearest, o), plan.excess),
         ErrorKind::usage);
}

}  // namespace sluice
