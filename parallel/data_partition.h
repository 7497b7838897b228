#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

/// Divides the items of a data set between ranks: the indices 0 .. size-1, shuffled by a seed and
/// cut into consecutive partitions, so that each item is in exactly one and every rank that knows
/// the seed agrees which. Pure arithmetic, the same on every machine.
///
/// The order is held, 8 bytes an item. train_gpt2 does without: its sequences are numbered, and a
/// rank takes its part of each batch.
class DataPartitioner {
 public:
  /// `fractions` of the items, one for each rank, are at least 0 and sum to 1. What does not divide
  /// is spread: each partition has its fraction of the items to less than one, and equal fractions
  /// differ by one item at most.
  DataPartitioner(std::int64_t size, std::span<const double> fractions, std::uint64_t seed);

  int partitions() const { return static_cast<int>(borders_.size()) - 1; }
  std::int64_t size() const { return borders_.back(); }
  /// The indices of a rank's items, valid as long as this object.
  std::span<const std::int64_t> partition(int rank) const;

 private:
  std::vector<std::int64_t> order_;
  std::vector<std::int64_t> borders_;  ///< partition r is [borders_[r], borders_[r + 1]) of order_
};

/// A rank's items where all `ranks` get the same share.
std::vector<std::int64_t> own_partition(int rank, int ranks, std::int64_t size, std::uint64_t seed);

}  // namespace sluice
