#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/train/planner.h"
#include "apps/train/tensor_traffic.h"

namespace sluice {

/// What a plan says of ranks that divide the matrices (--tp): counted, and, as far as time goes,
/// predicted.
struct TensorReport {
  /// Of a pipeline, all of whose shards exchange the same; without one there is one place.
  struct Place {
    std::vector<int> ranks{};  ///< of the first replica
    TensorTraffic traffic{};   ///< of each of them, in a step
    double seconds = 0, exposed = 0;
  };
  /// Ranks that have as much as each other.
  struct Shard {
    std::vector<int> ranks{};  ///< of the first replica
    std::int64_t heads = 0, vocabulary = 0, parameters = 0;
    MemoryPlan memory{};
    std::size_t excess = 0;  ///< bytes above what is allowed
  };

  Shards shards;
  std::uint64_t sum_bytes = 0;  ///< payload of one sum
  std::vector<Place> places{};
  std::vector<Shard> distinct{};  ///< of a pipeline: see its report
};

/// The options ask for --tp.
TensorReport report_tensor(const TrainOptions& options, const RunSetup& setup,
                           const DeviceProfile& profile, const MemoryChoice& choice);

std::string tensor_text(const TensorReport& report);
nlohmann::ordered_json tensor_json(const TensorReport& report);

}  // namespace sluice
