#pragma once

#include <string>
#include <vector>

#include "parallel/ring_file.h"

namespace sluice {

/// One sentence on why a job of `size` ranks does not go on: which rank is at fault or behind, at
/// which operation, and what the others wait for. In this order: a rank that reported an error
/// itself (the first that did), ranks that called different operations at the same place of a
/// communicator, ranks that are lost or stopped, ranks without a record, a rank that has not
/// started what others wait in. Of a job that was killed as a whole it says what can still be told.
std::string post_mortem(const std::vector<RankRecord>& records, int size);

/// "in all_reduce 'x' (operation 3 of world)", or after which one the rank was, and its note.
std::string whereabouts(const RankRecord& record);

/// "all_reduce 'gradients 3' (operation 42 of world)"
std::string describe(const RecordedOperation& operation);

}  // namespace sluice
