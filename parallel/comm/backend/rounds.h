#pragma once

#include "parallel/comm/backend/phases.h"

// Collectives in which a rank sends and receives about log2(ranks) messages.

namespace sluice {

/// Bruck's algorithm, for parts of equal size.
void add_all_gather_in_rounds(Phases& work);

/// Reduces along a binomial tree to rank 0, and sends the result back along it. The order of the
/// ranks is that of the tree.
void add_all_reduce_in_rounds(Phases& work);

/// In the round of distance d, each rank sends a token to the rank d after it. That rank then knows
/// of the 2 d - 1 ranks before it that they have begun.
void add_barrier_in_rounds(Phases& work);

/// Uses a binomial tree: in round k, ranks below 2^k (counted from the root) send to those 2^k
/// further.
void add_broadcast(Phases& work);

}  // namespace sluice
