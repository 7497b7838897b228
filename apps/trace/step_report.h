#pragma once

#include <algorithm>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/timeline.h"
#include "optim/offload/state_ring.h"

namespace sluice {

/// Durations within one step, in milliseconds. If state is streamed, the updates and their copies
/// are those of the previous step, which run during this one.
struct StepReport {
  double forward = 0;   ///< forward pass, less the updates and stalls during it
  double backward = 0;  ///< backward pass, likewise
  double update = 0;
  double cpu_update = 0;     ///< the CPU's updates, which run beside the device
  double stall = 0;          ///< the compute stream waits for copies or for the CPU
  double transfer = 0;       ///< copies in the busier direction
  double communication = 0;  ///< gradient reductions, from the first start to the last end
  double wait = 0;           ///< exposed waits for reductions or gathered weights
  StreamedBytes moved{};
  /// True if this step undid speculative updates; none: the run does not speculate.
  std::optional<bool> taken_back{};

  /// Returns the fraction of the transfers that was hidden behind computing.
  double overlap() const { return transfer > 0 ? std::max(0.0, 1 - stall / transfer) : 1; }
};

StepReport report_of(const std::vector<Timeline::Span>& spans, const StreamedBytes& moved);
/// Returns the parts that took time: "forward 31 ms, backward 64, update 3".
std::string spell(const StepReport& report);
/// Returns the report as fields of the run's log.
nlohmann::ordered_json fields_of(const StepReport& report);

}  // namespace sluice
