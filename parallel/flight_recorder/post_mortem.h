#pragma once

#include <string>
#include <vector>

#include "parallel/flight_recorder/flight_recorder.h"

namespace sluice {

/// Returns one sentence on why a job of `size` ranks has stopped: which rank is at fault or behind,
/// at which operation, and what the others wait for. It looks for causes in this order: the first
/// rank that reported an error itself, ranks whose operations with one sequence number differ,
/// ranks that are gone or stopped, ranks of a host that does not answer, ranks without a
/// record, a rank that has not started what others wait in. The sentence begins with the ranks that
/// were killed together, if there are any.
std::string post_mortem(const std::vector<RankRecord>& records, int size);

/// Returns "in all_reduce 'x' (operation 3 of world)", or "after" the last operation and the note.
std::string whereabouts(const RankRecord& record);

/// Returns "all_reduce 'gradients 3' (operation 42 of world)".
std::string describe(const RecordedOperation& operation);

}  // namespace sluice
