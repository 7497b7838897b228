#include "apps/report/shared_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/cli/progress.h"
#include "models/lora/targets.h"

namespace sluice {
namespace {

/// Returns the adapted layers: "all matrices", "matrices of attention", or the names.
std::string targets_text(const DecoderConfig& config) {
  const auto sorted = [](std::vector<std::string> names) {
    std::ranges::sort(names);
    return names;
  };
  const std::vector<std::string> targets = sorted(config.lora.targets);
  for (const auto& [group, words] : {std::pair{"all", "all matrices"},
                                     {"attention", "matrices of attention"},
                                     {"mlp", "matrices of MLPs"}})
    if (targets == sorted(lora_targets(config, group))) return words;
  return fmt::format("{}", fmt::join(config.lora.targets, ", "));
}

}  // namespace

Report model_report(const DeviceProfile& profile, const DecoderConfig& config,
                    const Precision& precision) {
  const std::int64_t parameters = config.parameter_count();
  Report report;
  report.figures += {{"device", profile.name}};
  report.row(
      "model",
      fmt::format("{} parameters, {} layers, {}", format_count(static_cast<double>(parameters)),
                  config.n_layer, name_of(precision)),
      {{"parameters", parameters}, {"precision", name_of(precision)}});
  if (config.lora.rank > 0)
    report.row("adapters", adapters_text(config),
               {{"adapter_parameters", adapter_parameters(config)}});
  if (config.lora.int8_base) report.row("base", int8_base_text, {{"int8_base", true}});
  return report;
}

std::string adapters_text(const DecoderConfig& config) {
  const LoraConfig& lora = config.lora;
  return fmt::format("rank {}, alpha {:g}, of {}: {} parameters are trained", lora.rank, lora.alpha,
                     targets_text(config),
                     format_count(static_cast<double>(adapter_parameters(config))));
}

std::string spell(const Link& link) {
  return fmt::format("{:.4g} GB/s and {:.3g} us", link.bandwidth / 1e9, link.latency * 1e6);
}

nlohmann::ordered_json link_json(const Link& link) {
  return {{"bytes_per_second", link.bandwidth}, {"latency_seconds", link.latency}};
}

nlohmann::ordered_json use_json(const MemoryByUse& bytes) {
  nlohmann::ordered_json uses;
  for (std::size_t use = 0; use < memory_uses; ++use)
    uses[std::string(name_of(static_cast<MemoryUse>(use)))] = bytes[use];
  return uses;
}

std::string state_file_text(const std::string& folder, std::size_t bytes,
                            const std::string& whose) {
  if (bytes == 0) return fmt::format("none{}: all state fits into memory", whose);
  return fmt::format("{}{} in {}, read and written once a step", format_bytes(bytes), whose,
                     folder);
}

std::string training_command(const TrainConfig& o, std::int64_t ranks, const std::string& flags) {
  std::string program = "train_gpt2";
  if (ranks > 1)
    program = ranks <= o.planning.ranks_per_node
                  ? fmt::format("scripts/launch -n {} train_gpt2", ranks)
                  : fmt::format("scripts/launch -n {} --hostfile HOSTS train_gpt2", ranks);
  return program + o.asked + " " + flags;
}

Report whole_run_report(const WholeRun& run) {
  const double all = static_cast<double>(run.steps) * run.step_seconds;
  const std::string time =
      std::isfinite(all) ? fmt::format("{} steps x {:.3g} s = {}, {}", run.steps, run.step_seconds,
                                       format_duration(all), run.rates)
                         : fmt::format("{} steps; how long one takes is not known", run.steps);
  Report report;
  // JSON has no infinity; it gets null instead.
  report.row("whole run", time, {{"steps", run.steps}, {"run_seconds", all}});
  report.row("command", run.command, {{"command", run.command}});
  return report;
}

}  // namespace sluice
