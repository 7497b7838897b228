#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/trace/pipeline_times.h"
#include "apps/trace/trace_file.h"
#include "apps/train/pipeline.h"
#include "apps/train_gpt2/job.h"

namespace sluice {

/// Collects the timelines of all ranks: writes them to the --trace file, and sums them up if the
/// model is a pipeline. All ranks construct one and call the same functions in the same order. Rank
/// 0 has the results and writes the file.
class RunTimes {
 public:
  /// `pipeline` may be null. `started`: when this rank's timeline was made.
  RunTimes(const TrainConfig& options, Job& job, std::shared_ptr<const PipelinePlan> pipeline,
           Timeline::Clock::time_point started);

  /// Call it after every step with the spans that this rank recorded.
  void step(const std::vector<Timeline::Span>& mine);
  /// Call it after the last step. Adds a predicted step to the trace, in which every action takes
  /// its mean time. Returns an object for the log; null if nothing was measured.
  nlohmann::ordered_json finish();
  /// Returns a line about the pipeline's bubble; empty if nothing was measured.
  std::string line() const;

 private:
  bool measured() const { return times_ && times_->steps() > 0; }
  void name_ranks(const Mesh& mesh, const char* prefix, int first) const;

  std::shared_ptr<const PipelinePlan> pipeline_;
  std::string schedule_;  ///< name of the schedule
  Mesh mesh_;
  std::optional<RankSpans> spans_;  ///< none if neither trace nor pipeline needs them
  std::unique_ptr<TraceFile> trace_;
  std::optional<PipelineTimes> times_;
  std::int64_t steps_ = 0;
  double last_start_ = 0;  ///< start of the last step's computation, in milliseconds
};

/// "13.2 % measured; predicted 11.1 % schedule + 1.4 % imbalance + 0.2 % messages"
std::string spell_bubble(double measured, const BubbleSplit& predicted);

}  // namespace sluice
