#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/plan/cost/tensor_traffic.h"
#include "apps/plan/planner.h"

namespace sluice {

/// Report on the ranks of a plan that divide the matrices (--tp): counted memory and traffic, and
/// predicted times.
struct TensorReport {
  /// A stage of the pipeline, whose shards all exchange the same. Without a pipeline there is one.
  struct Stage {
    std::vector<int> ranks{};  ///< of the first replica
    TensorTraffic traffic{};   ///< of each of these ranks per step
    double seconds = 0, exposed = 0;
  };
  /// Ranks with equal shares of the model.
  struct Shard {
    std::vector<int> ranks{};  ///< of the first replica
    std::int64_t heads = 0, vocabulary = 0, parameters = 0;
    MemoryPlan memory{};
    std::size_t excess = 0;  ///< bytes above the budget
  };

  Shards shards;
  std::uint64_t sum_bytes = 0;  ///< payload of one sum
  std::vector<Stage> stages{};
  std::vector<Shard> distinct{};  ///< empty with a pipeline, whose report has them
};

/// Requires options with --tp.
TensorReport report_tensor(const TrainOptions& options, const RunSetup& setup,
                           const DeviceProfile& profile, const MemoryChoice& choice);

std::string tensor_text(const TensorReport& report);
nlohmann::ordered_json tensor_json(const TensorReport& report);

}  // namespace sluice
