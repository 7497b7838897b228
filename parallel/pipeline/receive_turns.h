#pragma once

#include <cstddef>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// A receive, and the action of its rank's row before which it is started.
struct ReceiveTurn {
  std::size_t before;
  Action receive;
};

/// Returns when `rank` starts its receives if each of its messages holds up all later ones, as on a
/// GPU that runs one kernel of NCCL at a time. A receive that was started where it is posted would
/// then hold up the sends for which its sender waits. `lowered` must not deadlock.
///
/// The messages of all ranks are put into one order, that of a run in which a forward takes one
/// unit of time, a backward two, and messages none. Every rank starts its messages in this order,
/// and sends where the schedule has them. An operation inside a computing action has its place
/// where the action ends. Whatever the times of a real run are, each operation waits only for
/// earlier ones of this order, so no ranks wait in a circle.
std::vector<ReceiveTurn> receive_turns(const Schedule& lowered, int rank);

}  // namespace sluice
