#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "optim/space/space_layout.h"
#include "parallel/comm/backend/backend.h"

namespace sluice {

/// The division of the parameter space between ranks. The space is cut into buckets, each reduced
/// in one go as soon as backward has completed it. Each bucket is cut into one part per rank, so
/// that in ZeRO-1 (Rajbhandari et al., 2020) every reduction is spread over all ranks. All cuts are
/// at blocks of the layout. Pure arithmetic.
class BucketPlan {
 public:
  struct Options {
    int ranks = 1;
    std::size_t bucket_bytes = std::size_t{25} << 20;  ///< gradient bytes; at least one block
    std::size_t wide_bytes = 4, narrow_bytes = 2;      ///< bytes per gradient in the two buffers
    bool whole_tensors = false;                        ///< cuts only between stretches
  };

  /// The gradients of a bucket in one gradient buffer; `parts` divide [begin, end), one per rank.
  struct Gradients {
    bool narrow = false;
    std::int64_t begin = 0, end = 0;
    std::vector<Part> parts{};
  };
  struct Bucket {
    SpaceRange space;
    std::vector<Part> parts{};  ///< of `space`, one for each rank
    std::vector<Gradients> gradients{};
    std::vector<std::size_t> slots{};  ///< the slots with gradients in this bucket
  };

  BucketPlan(const SpaceLayout& layout, const Options& options);

  /// All buckets, from the end of the space to its beginning, in the order of backward.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The parts of a rank, ascending.
  std::vector<SpaceRange> owned(int rank) const;

 private:
  std::vector<Bucket> buckets_;
};

}  // namespace sluice
