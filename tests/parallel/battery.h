#pragma once

#include <cstddef>

#include "parallel/communicator.h"

// Every collective once, called by all ranks of a communicator on any transport: the results are
// compared in bits with plain loops. Throws where one is wrong. For double, float, BFloat16, Half
// and std::int32_t.

namespace sluice::test {

/// Sum and maximum; without scratch, with enough and with too little of it.
template <class T>
void check_all_reduce(Communicator& c, std::size_t count);
/// To every root.
template <class T>
void check_reduce(Communicator& c, std::size_t count);
/// Even parts, uneven and empty ones, and all of it to one rank.
template <class T>
void check_reduce_scatter(Communicator& c, std::size_t count);
template <class T>
void check_all_gather(Communicator& c, std::size_t count);
/// From every root.
template <class T>
void check_broadcast(Communicator& c, std::size_t count);
template <class T>
void check_gather(Communicator& c, std::size_t count);
template <class T>
void check_scatter(Communicator& c, std::size_t count);
/// To the next rank and from the one before; alone, to itself.
template <class T>
void check_ring_shift(Communicator& c, std::size_t count);
/// Everybody with everybody in one call, with counts of their own, some of them none.
template <class T>
void check_all_exchange(Communicator& c, std::size_t count);

template <class T>
void check_all(Communicator& c, std::size_t count) {
  check_all_reduce<T>(c, count);
  check_reduce<T>(c, count);
  check_reduce_scatter<T>(c, count);
  check_all_gather<T>(c, count);
  check_broadcast<T>(c, count);
  check_gather<T>(c, count);
  check_scatter<T>(c, count);
  check_ring_shift<T>(c, count);
  check_all_exchange<T>(c, count);
}

/// In one all_reduce and cut in several, with others under way, waited for in any order.
void check_cuts(Communicator& c, std::size_t count);
/// Several messages between two ranks in one call and in following ones, the last waited for first.
void check_message_order(Communicator& c);
/// Colours, keys that reorder, no colour, groups of groups, two groups at once.
void check_split(Communicator& c);
/// gather_values and share_text.
void check_values(Communicator& c);

}  // namespace sluice::test
