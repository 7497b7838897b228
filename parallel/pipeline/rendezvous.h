#pragma once

#include "parallel/pipeline/refusal.h"
#include "parallel/pipeline/schedule.h"

namespace sluice {

/// Simulates all ranks without buffering: a receive is posted without waiting, a send waits for its
/// receive, and an action that computes waits for the send of its input. An Error names the ranks
/// that wait for one another if not all finish. Each rank's row must be valid by itself.
void check_rendezvous(const Schedule& schedule, const ActionPlaces& places);

}  // namespace sluice
