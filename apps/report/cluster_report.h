#pragma once

#include <string>

#include "apps/plan/cluster/cluster_plan.h"
#include "apps/report/report.h"

namespace sluice {

/// Returns a row for each mesh's best candidate, the chosen one as flags, and why the others are
/// slower.
Report cluster_report(const ClusterTask& task, const ClusterPlan& plan);

/// Names the cost by which `other` loses most to `best`: "the pipeline's bubble (+1.20 s)".
std::string why_slower(const ClusterCandidate& best, const ClusterCandidate& other);

}  // namespace sluice
