#include "apps/report/cluster_report.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "apps/cli/progress.h"
#include "apps/cli/sizes.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

/// Returns "" without a pipeline.
std::string_view name_of_schedule(const ParallelConfig& candidate) {
  return candidate.pipeline ? name_in(pipelines, *candidate.pipeline) : "";
}

std::string schedule_of(const ParallelConfig& candidate) {
  if (!candidate.pipeline) return "-";
  const std::string_view name = name_of_schedule(candidate);
  return candidate.virtual_stages > 1 ? fmt::format("{} x{}", name, candidate.virtual_stages)
                                      : std::string(name);
}

std::string recompute_of(const ParallelConfig& candidate) {
  return to_string(candidate.choice.recompute);
}

double share(double part, const ParallelConfig& candidate) {
  return 100 * part / candidate.time.total();
}

std::string rows_text(const ClusterPlan& plan, bool gpu) {
  std::size_t recompute = 9, schedule = 8;
  for (const ParallelConfig& candidate : plan.candidates) {
    recompute = std::max(recompute, recompute_of(candidate).size());
    schedule = std::max(schedule, schedule_of(candidate).size());
  }
  std::string text = fmt::format(
      "\n{:>14} {:>4} {:>11}  {:<{}}  {:<{}} {:>10} {:>9} {:>10} {:>10} {:>11} {:>7} {:>7}\n",
      "dp x pp x tp", "zero", "micro-batch", "schedule", schedule, "recompute", recompute,
      "state on", gpu ? "GiB a GPU" : "GiB a CPU", "host GiB", "s a step", "tokens/s", "bubble",
      "comm");
  for (const ParallelConfig& candidate : plan.candidates) {
    const auto layers = static_cast<std::int64_t>(candidate.choice.recompute.size());
    text += fmt::format(
        "{:>14} {:>4} {:>11}  {:<{}}  {:<{}} {:>10} {:>9.3f} {:>10.3f} {:>10.4g} {:>11.0f} "
        "{:>5.1f} "
        "% {:>5.1f} %\n",
        fmt::format("{} x {} x {}", candidate.mesh.dp, candidate.mesh.pp, candidate.mesh.tp),
        candidate.zero,
        fmt::format("{} x {}", candidate.choice.micro_batch, candidate.micro_batches),
        schedule_of(candidate), schedule, recompute_of(candidate), recompute,
        !candidate.choice.streams() ? std::string(gpu ? "GPU" : "CPU")
        : candidate.choice.resident_blocks == 0
            ? std::string("host")
            : fmt::format("{} of {}", candidate.choice.resident_blocks, layers),
        gib(candidate.memory.high_water), gib(candidate.memory.host), candidate.time.total(),
        candidate.tokens_per_second, share(candidate.time.bubble, candidate),
        share(candidate.time.exposed(), candidate));
  }
  return text;
}

Json candidate_json(const ClusterTask& task, const ParallelConfig& candidate) {
  const ClusterTime& t = candidate.time;
  return {{"dp", candidate.mesh.dp},
          {"pp", candidate.mesh.pp},
          {"tp", candidate.mesh.tp},
          {"zero", candidate.zero},
          {"micro_batch", candidate.choice.micro_batch},
          {"micro_batches", candidate.micro_batches},
          {"pipeline", name_of_schedule(candidate)},
          {"virtual_stages", candidate.virtual_stages},
          {"recompute", to_string(candidate.choice.recompute)},
          {"state_layout", name_of(candidate.choice.layout)},
          {"gradients", candidate.choice.narrow_gradients ? "bf16" : "fp32"},
          {"resident_blocks", candidate.choice.resident_blocks},
          {"flags", to_flags(candidate, task.options)},
          {"device_bytes", candidate.memory.high_water},
          {"device_peak_bytes", candidate.memory.peak},
          {"host_bytes", candidate.memory.host},
          {"tokens_per_second", candidate.tokens_per_second},
          {"predicted_seconds",
           {{"total", t.total()},
            {"compute", t.compute},
            {"bubble", t.bubble},
            {"messages", t.messages},
            {"tensor", t.tensor},
            {"tied_table", t.table},
            {"data_parallel", t.data},
            {"update", t.update},
            {"stall", t.stall}}},
          {"bubble", t.bubble / t.total()},
          {"communication_exposed", t.exposed() / t.total()}};
}

}  // namespace

std::string why_slower(const ParallelConfig& best, const ParallelConfig& other) {
  const ClusterTime &a = best.time, &b = other.time;
  const std::array<std::pair<const char*, double>, 8> parts{
      {{"computing", (b.compute - b.tensor) - (a.compute - a.tensor)},
       {"waiting for other shards", b.tensor - a.tensor},
       {"the pipeline's bubble", b.bubble - a.bubble},
       {"messages between stages", b.messages - a.messages},
       {"the tied table", b.table - a.table},
       {"gradients among replicas", b.data - a.data},
       {"the update", b.update - a.update},
       {"streaming state", b.stall - a.stall}}};
  const auto* const worst =
      std::ranges::max_element(parts, {}, [](const auto& part) { return part.second; });
  return fmt::format("{} ({:+.3g} s)", worst->first, worst->second);
}

std::string cluster_text(const ClusterTask& task, const ClusterPlan& plan) {
  const TrainOptions& o = task.options;
  std::string text;
  const auto row = [&](const std::string& name, const std::string& value) {
    text += fmt::format("{:<12} {}\n", name, value);
  };
  row("model", fmt::format("{} parameters, {} layers, {}",
                           format_count(static_cast<double>(task.config.parameter_count())),
                           task.config.n_layer, name_of(task.precision)));
  row("batch", fmt::format("{} sequences x {} tokens", o.batch_size, task.seq_len));
  const Interconnect joined = interconnect_of(o, task.profile);
  row("cluster",
      fmt::format("{} x {}, {} in a node: {:.4g} GB/s and {:.3g} us; beyond: {:.4g} GB/s "
                  "a node and {:.3g} us",
                  task.gpus, task.profile.name, joined.ranks_per_node, joined.link.bandwidth / 1e9,
                  joined.link.latency * 1e6, joined.network.bandwidth / 1e9,
                  joined.network.latency * 1e6));
  row("looked at",
      fmt::format("{} meshes; {} do not fit, {} cannot share the batch or keep the flags, {} are "
                  "slower whatever fits",
                  plan.meshes, plan.unfit, plan.refused, plan.slower));
  if (plan.candidates.empty()) {
    const ParallelConfig& candidate = *plan.nearest;
    return text + fmt::format(
                      "\nnone fits; the nearest has {} bytes too many in the memory of its "
                      "fullest {}:\n  {}\n",
                      plan.excess, task.profile.gpu ? "GPU" : "rank", to_flags(candidate, o));
  }
  text += rows_text(plan, task.profile.gpu) + "\n";
  row("predicted", "by the cost model, from assumed or probed rates; nothing here was measured");
  row("chosen", to_flags(plan.candidates[0], o));
  for (std::size_t i = 1; i < plan.candidates.size(); ++i) {
    const Mesh& mesh = plan.candidates[i].mesh;
    row(i == 1 ? "others lose" : "",
        fmt::format("{} x {} x {} by {}", mesh.dp, mesh.pp, mesh.tp,
                    why_slower(plan.candidates[0], plan.candidates[i])));
  }
  return text;
}

Json cluster_json(const ClusterTask& task, const ClusterPlan& plan) {
  Json json{{"device", task.profile.name},
            {"parameters", task.config.parameter_count()},
            {"precision", name_of(task.precision)},
            {"batch_size", task.options.batch_size},
            {"seq_len", task.seq_len},
            {"gpus", task.gpus},
            {"ranks_per_node", task.options.ranks_per_node},
            {"meshes", plan.meshes},
            {"meshes_unfit", plan.unfit},
            {"meshes_refused", plan.refused},
            {"meshes_slower", plan.slower},
            {"ways", Json::array()}};
  for (const ParallelConfig& candidate : plan.candidates)
    json["ways"].push_back(candidate_json(task, candidate));
  if (plan.nearest) {
    json["nearest"] = candidate_json(task, *plan.nearest);
    for (const char* key :
         {"tokens_per_second", "predicted_seconds", "bubble", "communication_exposed"})
      json["nearest"].erase(key);
    json["nearest"]["bytes_too_many"] = plan.excess;
  }
  return json;
}

}  // namespace sluice
