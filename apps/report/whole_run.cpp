#include "apps/report/whole_run.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/progress.h"

namespace sluice {

std::string training_command(const TrainOptions& o, std::int64_t ranks, const std::string& flags) {
  std::string program = "train_gpt2";
  if (ranks > 1)
    program = ranks <= o.ranks_per_node
                  ? fmt::format("scripts/launch -n {} train_gpt2", ranks)
                  : fmt::format("mpirun -n {} --bind-to none train_gpt2", ranks);
  return program + o.asked + " " + flags;
}

std::string whole_run_text(const WholeRun& run) {
  const double all = static_cast<double>(run.steps) * run.step_seconds;
  const std::string time =
      std::isfinite(all) ? fmt::format("{} steps x {:.3g} s = {}, {}", run.steps, run.step_seconds,
                                       format_duration(all), run.rates)
                         : fmt::format("{} steps; how long one takes is not known", run.steps);
  return fmt::format("{:<12} {}\n{:<12} {}\n", "whole run", time, "command", run.command);
}

void add_whole_run(nlohmann::ordered_json& json, const WholeRun& run) {
  json["steps"] = run.steps;
  const double all = static_cast<double>(run.steps) * run.step_seconds;
  json["run_seconds"] =
      std::isfinite(all) ? nlohmann::ordered_json(all) : nlohmann::ordered_json(nullptr);
  json["command"] = run.command;
}

}  // namespace sluice
