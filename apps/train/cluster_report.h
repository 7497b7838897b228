#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/train/cluster_plan.h"

namespace sluice {

/// A row for each mesh's best way, the chosen one as flags, and what the others lose by.
std::string cluster_text(const ClusterTask& task, const ClusterPlan& plan);
nlohmann::ordered_json cluster_json(const ClusterTask& task, const ClusterPlan& plan);

/// Where the slower of two ways loses most: "the pipeline's bubble (+1.20 s)".
std::string why_slower(const ClusterWay& best, const ClusterWay& other);

}  // namespace sluice
