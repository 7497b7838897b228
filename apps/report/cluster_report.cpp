#include "apps/report/cluster_report.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "apps/cli/progress.h"
#include "apps/cli/sizes.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

double gib(double bytes) {
  return bytes / (1 << 30);
}

/// Returns "" without a pipeline.
std::string_view name_of_schedule(const ParallelConfig& way) {
  return way.pipeline ? name_in(pipelines, *way.pipeline) : "";
}

std::string schedule_of(const ParallelConfig& way) {
  if (!way.pipeline) return "-";
  const std::string_view name = name_of_schedule(way);
  return way.virtual_stages > 1 ? fmt::format("{} x{}", name, way.virtual_stages)
                                : std::string(name);
}

std::string recompute_of(const ParallelConfig& way) {
  return to_string(way.choice.recompute);
}

double share(double part, const ParallelConfig& way) {
  return 100 * part / way.time.total();
}

std::string rows_text(const ClusterPlan& plan, bool gpu) {
  std::size_t recompute = 9, schedule = 8;
  for (const ParallelConfig& way : plan.ways) {
    recompute = std::max(recompute, recompute_of(way).size());
    schedule = std::max(schedule, schedule_of(way).size());
  }
  std::string text = fmt::format(
      "\n{:>14} {:>4} {:>11}  {:<{}}  {:<{}} {:>10} {:>9} {:>10} {:>10} {:>11} {:>7} {:>7}\n",
      "dp x pp x tp", "zero", "micro-batch", "schedule", schedule, "recompute", recompute,
      "state on", gpu ? "GiB a GPU" : "GiB a CPU", "host GiB", "s a step", "tokens/s", "bubble",
      "comm");
  for (const ParallelConfig& way : plan.ways) {
    const auto layers = static_cast<std::int64_t>(way.choice.recompute.size());
    text += fmt::format(
        "{:>14} {:>4} {:>11}  {:<{}}  {:<{}} {:>10} {:>9.3f} {:>10.3f} {:>10.4g} {:>11.0f} "
        "{:>5.1f} "
        "% {:>5.1f} %\n",
        fmt::format("{} x {} x {}", way.mesh.dp, way.mesh.pp, way.mesh.tp), way.zero,
        fmt::format("{} x {}", way.choice.micro_batch, way.micro_batches), schedule_of(way),
        schedule, recompute_of(way), recompute,
        !way.choice.streams() ? std::string(gpu ? "GPU" : "CPU")
        : way.choice.resident_blocks == 0
            ? std::string("host")
            : fmt::format("{} of {}", way.choice.resident_blocks, layers),
        gib(static_cast<double>(way.memory.high_water)), gib(static_cast<double>(way.memory.host)),
        way.time.total(), way.tokens_per_second, share(way.time.bubble, way),
        share(way.time.exposed(), way));
  }
  return text;
}

Json way_json(const ClusterTask& task, const ParallelConfig& way) {
  const ClusterTime& t = way.time;
  return {{"dp", way.mesh.dp},
          {"pp", way.mesh.pp},
          {"tp", way.mesh.tp},
          {"zero", way.zero},
          {"micro_batch", way.choice.micro_batch},
          {"micro_batches", way.micro_batches},
          {"pipeline", name_of_schedule(way)},
          {"virtual_stages", way.virtual_stages},
          {"recompute", to_string(way.choice.recompute)},
          {"state_layout", name_of(way.choice.layout)},
          {"gradients", way.choice.narrow_gradients ? "bf16" : "fp32"},
          {"resident_blocks", way.choice.resident_blocks},
          {"flags", to_flags(way, task.options)},
          {"device_bytes", way.memory.high_water},
          {"device_peak_bytes", way.memory.peak},
          {"host_bytes", way.memory.host},
          {"tokens_per_second", way.tokens_per_second},
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
  if (plan.ways.empty()) {
    const ParallelConfig& way = *plan.nearest;
    return text + fmt::format(
                      "\nnone fits; the nearest has {} bytes too many in the memory of its "
                      "fullest {}:\n  {}\n",
                      plan.excess, task.profile.gpu ? "GPU" : "rank", to_flags(way, o));
  }
  text += rows_text(plan, task.profile.gpu) + "\n";
  row("predicted", "by the cost model, from assumed or probed rates; nothing here was measured");
  row("chosen", to_flags(plan.ways[0], o));
  for (std::size_t i = 1; i < plan.ways.size(); ++i) {
    const Mesh& mesh = plan.ways[i].mesh;
    row(i == 1 ? "others lose" : "", fmt::format("{} x {} x {} by {}", mesh.dp, mesh.pp, mesh.tp,
                                                 why_slower(plan.ways[0], plan.ways[i])));
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
  for (const ParallelConfig& way : plan.ways)
    json["ways"].push_back(way_json(task, way));
  if (plan.nearest) {
    json["nearest"] = way_json(task, *plan.nearest);
    for (const char* key :
         {"tokens_per_second", "predicted_seconds", "bubble", "communication_exposed"})
      json["nearest"].erase(key);
    json["nearest"]["bytes_too_many"] = plan.excess;
  }
  return json;
}

}  // namespace sluice
