#pragma once

#include <cstddef>

#include "parallel/comm/communicator.h"

// Calls every collective once on all ranks of a communicator, on any transport, and compares the
// results bit for bit with plain loops. Throws if one is wrong. T is double, float, BFloat16, Half
// or std::int32_t.

namespace sluice::test {

template <class T>
struct Battery {
  /// Checks sum and maximum without scratch memory, with enough, and with too little.
  static void all_reduce(Communicator& c, std::size_t count);
  /// Checks every root.
  static void reduce(Communicator& c, std::size_t count);
  /// Checks even parts, uneven and empty parts, and everything to one rank.
  static void reduce_scatter(Communicator& c, std::size_t count);
  static void all_gather(Communicator& c, std::size_t count);
  /// Checks every root.
  static void broadcast(Communicator& c, std::size_t count);
  static void gather(Communicator& c, std::size_t count);
  static void scatter(Communicator& c, std::size_t count);
  /// Sends to the next rank and receives from the previous one; a single rank sends to itself.
  static void ring_shift(Communicator& c, std::size_t count);
  /// Every rank sends to every rank in one call, with different counts, some of them zero.
  static void all_exchange(Communicator& c, std::size_t count);

  static void all(Communicator& c, std::size_t count) {
    all_reduce(c, count);
    reduce(c, count);
    reduce_scatter(c, count);
    all_gather(c, count);
    broadcast(c, count);
    gather(c, count);
    scatter(c, count);
    ring_shift(c, count);
    all_exchange(c, count);
  }
};

/// Checks one all_reduce against several smaller ones, with others in flight, awaited in any order.
void check_cuts(Communicator& c, std::size_t count);
/// Sends several messages between two ranks in one call and in later ones; awaits the last first.
void check_message_order(Communicator& c);
/// Checks colours, keys that reorder, no colour, groups of groups, two groups at once.
void check_split(Communicator& c);
/// Checks gather_values and share_text.
void check_values(Communicator& c);

}  // namespace sluice::test
