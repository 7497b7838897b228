#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

/// Divides the items of a data set between ranks: the indices 0 .. size-1, shuffled by a seed and
/// cut into consecutive partitions. Each item is in exactly one partition, and every rank that
/// knows the seed computes the same ones. Pure arithmetic, the same on every machine.
///
/// The order takes 8 bytes per item in memory. train_mlp divides its points so. train_gpt2 does not
/// need it: its sequences are numbered, and a rank takes its part of each batch.
class DataPartitioner {
 public:
  /// `fractions` of the items, one per rank, are at least 0 and sum to 1. A remainder is spread:
  /// each partition differs from its fraction of the items by less than one, and equal fractions
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

/// Returns a rank's items if all `ranks` get the same share.
std::vector<std::int64_t> own_partition(int rank, int ranks, std::int64_t size, std::uint64_t seed);

}  // namespace sluice
