#pragma once

#include "parallel/pipeline/refusal.h"
#include "parallel/pipeline/schedule.h"

namespace sluice {

/// Runs all ranks where nothing is buffered: a receive is posted without waiting, a send waits for
/// its receive, computing waits for the send of what it needs. An Error, with the ranks that wait
/// for one another, if they do not get to their ends. Each rank's row must be right by itself.
void check_rendezvous(const Schedule& schedule, const ActionPlaces& places);

}  // namespace sluice
