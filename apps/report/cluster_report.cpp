#include "apps/report/cluster_report.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "apps/report/shared_parts.h"

namespace sluice {
namespace {

std::string schedule_of(const ClusterCandidate& way) {
  if (!way.pipeline) return "-";
  const std::string_view name = name_in(pipelines, *way.pipeline);
  return way.virtual_stages > 1 ? fmt::format("{} x{}", name, way.virtual_stages)
                                : std::string(name);
}

std::string state_place_of(const MemoryChoice& choice, bool gpu) {
  const std::int64_t resident = choice.count(Residency::device);
  if (!choice.offloads_state()) return gpu ? "GPU" : "CPU";
  if (resident == 0) return "host";
  return fmt::format("{} of {}", resident, choice.layers());
}

/// The division of the work and its memory.
Figures division(const ClusterTask& task, const ClusterCandidate& way) {
  const Mesh& mesh = way.mesh;
  const MemoryChoice& choice = way.choice;
  const MemoryPlan& memory = way.memory;
  const bool gpu = task.profile.gpu;
  return {
      {"dp", mesh.dp},
      {"pp", mesh.pp},
      {"tp", mesh.tp},
      {"", fmt::format("{} x {} x {}", mesh.dp, mesh.pp, mesh.tp), {"dp x pp x tp", 14}},
      {"zero", way.zero, {"zero", 4}},
      {"micro_batch", choice.micro_batch},
      {"micro_batches", way.micro_batches},
      {"", fmt::format("{} x {}", choice.micro_batch, way.micro_batches), {"micro-batch", 11}},
      {"pipeline", way.pipeline ? name_in(pipelines, *way.pipeline) : ""},
      {"virtual_stages", way.virtual_stages},
      {"", schedule_of(way), {"schedule"}},
      {"placement", to_string(choice.placement)},
      {"", recompute_text(choice.placement), {"recompute"}},
      {"state_layout", name_of(choice.layout)},
      {"gradients", choice.narrow_gradients ? "bf16" : "fp32"},
      {"resident_blocks", choice.count(Residency::device)},
      {"", state_place_of(choice, gpu), {"state on", 10}},
      {"flags", to_flags(way, task.options)},
      {"device_bytes", memory.high_water, {gpu ? "GiB a GPU" : "GiB a CPU", 9, "{:.3f}", in_gib}},
      {"device_peak_bytes", memory.peak},
      {"host_bytes", memory.host, {"host GiB", 10, "{:.3f}", in_gib}}};
}

/// The predicted times of a step.
Figures times(const ClusterCandidate& way) {
  const ClusterTime& t = way.time;
  return {{"", t.total(), {"s a step", 10, "{:.4g}"}},
          {"tokens_per_second", way.tokens_per_second, {"tokens/s", 11, "{:.0f}"}},
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
          {"bubble", t.bubble / t.total(), {"bubble", 7, "{:.1f} %", in_percent}},
          {"communication_exposed", t.exposed() / t.total(), {"comm", 7, "{:.1f} %", in_percent}}};
}

}  // namespace

std::string why_slower(const ClusterCandidate& best, const ClusterCandidate& other) {
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

Report cluster_report(const ClusterTask& task, const ClusterPlan& plan) {
  const TrainConfig& o = task.options;
  Report report = model_report(task.profile, task.config, task.precision);
  report.row("batch", fmt::format("{} sequences x {} tokens", o.batch.size, task.seq_len),
             {{"batch_size", o.batch.size}, {"seq_len", task.seq_len}});
  const Interconnect joined = interconnect_of(o.planning, o.parallel, task.profile);
  report.row("cluster",
             fmt::format("{} x {}, {} in a node: {}; beyond: {:.4g} GB/s a node and {:.3g} us",
                         task.gpus, task.profile.name, joined.ranks_per_node, spell(joined.link),
                         joined.network.bandwidth / 1e9, joined.network.latency * 1e6),
             {{"gpus", task.gpus}, {"ranks_per_node", o.planning.ranks_per_node}});
  report.row("looked at",
             fmt::format("{} meshes; {} do not fit, {} cannot share the batch or keep the flags, "
                         "{} are slower whatever fits",
                         plan.meshes, plan.unfit, plan.refused, plan.slower),
             {{"meshes", plan.meshes},
              {"meshes_unfit", plan.unfit},
              {"meshes_refused", plan.refused},
              {"meshes_slower", plan.slower}});
  std::vector<Figures> ways;
  for (const ClusterCandidate& way : plan.candidates) {
    ways.push_back(division(task, way));
    ways.back() += times(way);
  }
  report.table("ways", ways);
  if (plan.candidates.empty()) {
    report.text += fmt::format(
        "\nnone fits; the nearest has {} bytes too many in the memory of its fullest {}:\n  {}\n",
        plan.excess, task.profile.gpu ? "GPU" : "rank", to_flags(*plan.nearest, o));
    Figures nearest = division(task, *plan.nearest);
    nearest += {{"bytes_too_many", plan.excess}};
    report.figures += {{"nearest", to_json(nearest)}};
    return report;
  }
  report.text += "\n";
  report.row("predicted",
             "by the cost model, from assumed or probed rates; nothing here was measured");
  report.row("chosen", to_flags(plan.candidates[0], o));
  for (std::size_t i = 1; i < plan.candidates.size(); ++i) {
    const Mesh& mesh = plan.candidates[i].mesh;
    report.row(i == 1 ? "others lose" : "",
               fmt::format("{} x {} x {} by {}", mesh.dp, mesh.pp, mesh.tp,
                           why_slower(plan.candidates[0], plan.candidates[i])));
  }
  return report;
}

}  // namespace sluice
