#include "apps/train_gpt2/run_times.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

/// The number of first steps that are not measured, since they touch memory for the first time.
constexpr std::int64_t first_steps = 2;

}  // namespace

RunTimes::RunTimes(const TrainConfig& options, Job& job,
                   std::shared_ptr<const PipelinePlan> pipeline,
                   Timeline::Clock::time_point started)
    : pipeline_(std::move(pipeline)),
      schedule_(to_string(options.parallel.schedule())),
      mesh_(job.mesh()) {
  // Ranks may have been given different files; rank 0's counts.
  const std::string file =
      job.size() > 1 ? job.control().share_text(options.log.trace, 0, "trace") : options.log.trace;
  if (!pipeline_ && file.empty()) return;
  spans_.emplace(job.control(), job.local_size() == job.size(), started);
  if (pipeline_) times_.emplace(pipeline_->schedule, pipeline_->stash == Stash::input);
  if (file.empty() || job.rank() > 0) return;
  trace_ = std::make_unique<TraceFile>(file);
  name_ranks(mesh_, "", 0);
}

void RunTimes::name_ranks(const Mesh& mesh, const char* prefix, int first) const {
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::vector<std::size_t> stages;
    for (std::size_t stage = 0; pipeline_ && stage < pipeline_->rank_of_stage.size(); ++stage)
      if (pipeline_->rank_of_stage[stage] == mesh.stage(rank)) stages.push_back(stage);
    std::string name = fmt::format("{}rank {}", prefix, rank);
    if (!stages.empty())
      name += fmt::format(": stage{} {}", stages.size() > 1 ? "s" : "", fmt::join(stages, ", "));
    trace_->name(first + rank, name);
  }
}

void RunTimes::step(const std::vector<Timeline::Span>& mine) {
  if (!spans_) return;
  const auto all = spans_->gather(mine);
  if (trace_) trace_->write(all);
  if (!times_ || ++steps_ <= first_steps || all.empty()) return;
  times_->add(all);
  const auto labelled = [](const RankSpan& span) {
    return span.stage >= 0 && span.name() == "forward" ? span.start : INFINITY;
  };
  last_start_ = labelled(*std::ranges::min_element(all, {}, labelled));
}

Json RunTimes::finish() {
  if (!measured()) return nullptr;
  const auto costs = times_->costs();
  const BubbleSplit split = times_->predicted();
  if (trace_) {
    // All replicas are alike, so it simulates one.
    const Simulation simulation = simulate(pipeline_->schedule, costs);
    name_ranks({.dp = 1, .pp = mesh_.pp}, "predicted ", mesh_.size());
    std::vector<RankSpan> spans;
    for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank)
      for (const auto& [action, start, end] : simulation.ranks[rank])
        spans.emplace_back(span_name(action.kind), mesh_.size() + static_cast<int>(rank),
                           last_start_ + start, end - start,
                           Timeline::Label{action.stage, action.micro_batch});
    trace_->write(spans);
  }
  Json json{{"schedule", schedule_},
            {"ranks", mesh_.pp},
            {"micro_batches", pipeline_->schedule.micro_batches},
            {"steps", times_->steps()},
            {"bubble", times_->bubble()},
            {"predicted_bubble",
             {{"schedule", split.schedule},
              {"imbalance", split.imbalance},
              {"messages", split.communication},
              {"total", split.schedule + split.imbalance + split.communication}}},
            {"stages", Json::array()}};
  for (std::size_t stage = 0; stage < costs.size(); ++stage)
    json["stages"].push_back({{"rank", pipeline_->rank_of_stage[stage]},
                              {"forward_ms", costs[stage].forward},
                              {"backward_ms", costs[stage].backward},
                              {"weights_ms", costs[stage].weights},
                              {"message_ms", costs[stage].send}});
  return json;
}

std::string RunTimes::line() const {
  if (!measured()) return {};
  return fmt::format("pipeline     {}, {} stage{} x {} micro-batches: bubble {}\n", schedule_,
                     pipeline_->schedule.stages, pipeline_->schedule.stages > 1 ? "s" : "",
                     pipeline_->schedule.micro_batches,
                     spell_bubble(times_->bubble(), times_->predicted()));
}

std::string spell_bubble(double measured, const BubbleSplit& predicted) {
  const auto more = [](double part) {
    return fmt::format("{} {:.1f} %", part < -5e-4 ? '-' : '+', 100 * std::abs(part));
  };
  return fmt::format("{:.1f} % measured; predicted {:.1f} % schedule {} imbalance {} messages",
                     100 * measured, 100 * predicted.schedule, more(predicted.imbalance),
                     more(predicted.communication));
}

}  // namespace sluice
