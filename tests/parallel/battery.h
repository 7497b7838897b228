#pragma once

#include <cstddef>

#include "parallel/comm/communicator.h"

// Calls every collective once on all ranks of a communicator, on any transport, and compares the
// results bit for bit with plain loops. Throws if one is wrong. T is double, float, BFloat16, Half
// or std::int32_t.

namespace sluice::test {

/// Checks sum and maximum without scratch memory, with enough, and with too little.
template <class T>
void check_all_reduce(Communicator& c, std::size_t count);
/// Checks every root.
template <class T>
void check_reduce(Communicator& c, std::size_t count);
/// Checks even parts, uneven and empty parts, and everything to one rank.
template <class T>
void check_reduce_scatter(Communicator& c, std::size_t count);
template <class T>
void check_all_gather(Communicator& c, std::size_t count);
/// Checks every root.
template <class T>
void check_broadcast(Communicator& c, std::size_t count);
template <class T>
void check_gather(Communicator& c, std::size_t count);
template <class T>
void check_scatter(Communicator& c, std::size_t count);
/// Sends to the next rank and receives from the previous one; a single rank sends to itself.
template <class T>
void check_ring_shift(Communicator& c, std::size_t count);
/// Every rank sends to every rank in one call, with different counts, some of them zero.
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

/// Checks one all_reduce against several smaller ones, with others in flight, awaited in any order.
void check_cuts(Communicator& c, std::size_t count);
/// Sends several messages between two ranks in one call and in later ones; awaits the last first.
void check_message_order(Communicator& c);
/// Checks colours, keys that reorder, no colour, groups of groups, two groups at once.
void check_split(Communicator& c);
/// Checks gather_values and share_text.
void check_values(Communicator& c);

}  // namespace sluice::test
