#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/job.h"
#include "apps/train/pipeline.h"
#include "apps/train/pipeline_times.h"
#include "apps/train/trace_file.h"

namespace sluice {

/// What a run's ranks did when: into the file of --trace, and summed up where the model is a
/// pipeline. All ranks make one and call the same functions in the same order; the first knows and
/// writes.
class RunTimes {
 public:
  /// `pipeline` may be none. `started`: when this rank's timeline was made.
  RunTimes(const TrainOptions& options, Job& job, std::shared_ptr<const PipelinePlan> pipeline,
           Timeline::Clock::time_point started);

  /// After every step, with what this rank recorded in it.
  void step(const std::vector<Timeline::Span>& mine);
  /// After the last step: adds to the trace when a step's computing should have been, if everything
  /// took its mean. For the log; null where nothing was measured.
  nlohmann::ordered_json finish();
  /// A line about the pipeline's bubble; empty where nothing was measured.
  std::string line() const;

 private:
  bool measured() const { return times_ && times_->steps() > 0; }
  void name_ranks(const Mesh& mesh, const char* prefix, int first) const;

  std::shared_ptr<const PipelinePlan> pipeline_;
  std::string schedule_;  ///< its name
  Mesh mesh_;
  std::optional<RankSpans> spans_;  ///< none where nobody wants to know
  std::unique_ptr<TraceFile> trace_;
  std::optional<PipelineTimes> times_;
  std::int64_t steps_ = 0;
  double last_start_ = 0;  ///< of the last step's computing, in milliseconds
};

/// "13.2 % measured; predicted 11.1 % schedule + 1.4 % imbalance + 0.2 % messages"
std::string spell_bubble(double measured, const BubbleSplit& predicted);

}  // namespace sluice
