#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/plan/cluster/cluster_plan.h"

namespace sluice {

/// Formats a row for each mesh's best candidate, the chosen one as flags, and why the others are
/// slower.
std::string cluster_text(const ClusterTask& task, const ClusterPlan& plan);
nlohmann::ordered_json cluster_json(const ClusterTask& task, const ClusterPlan& plan);

/// Names the cost by which `other` loses most to `best`: "the pipeline's bubble (+1.20 s)".
std::string why_slower(const ParallelConfig& best, const ParallelConfig& other);

}  // namespace sluice
