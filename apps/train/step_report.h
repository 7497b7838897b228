#pragma once

#include <algorithm>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/timeline.h"
#include "optim/state_ring.h"

namespace sluice {

/// Where the device's time went in one step, in milliseconds. Where state streams, its updates are
/// those of the step before.
struct StepReport {
  double forward = 0;   ///< updates and stalls in its course taken out
  double backward = 0;  ///< likewise
  double update = 0;
  double cpu_update = 0;     ///< of the CPU's share, beside the device
  double stall = 0;          ///< the computing waited for copies or for the CPU
  double transfer = 0;       ///< of the busier direction
  double communication = 0;  ///< reductions of gradients, from the first start to the last end
  double wait = 0;           ///< of it and of gathering weights: what was not hidden
  StreamedBytes moved{};
  /// What had begun under the backward pass was undone; none: updates do not begin there.
  std::optional<bool> taken_back{};

  /// The share of the transfers that was hidden behind computing.
  double overlap() const { return transfer > 0 ? std::max(0.0, 1 - stall / transfer) : 1; }
};

StepReport report_of(const std::vector<Timeline::Span>& spans, const StreamedBytes& moved);
/// "forward 31 ms, backward 64, update 3": the parts that took time.
std::string spell(const StepReport& report);
/// For the log.
nlohmann::ordered_json fields_of(const StepReport& report);

}  // namespace sluice
