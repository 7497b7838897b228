#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "optim/space_layout.h"
#include "parallel/backend.h"

namespace sluice {

/// How ranks divide the parameter space. It is cut into buckets: what is reduced in one go as soon
/// as backward has completed it. Each bucket is cut into one part a rank, so that in ZeRO-1
/// (Rajbhandari et al., 2020) every reduction is spread over all ranks. All cuts are at blocks of
/// the layout. Pure arithmetic.
class Partition {
 public:
  struct Options {
    int ranks = 1;
    std::size_t bucket_bytes = std::size_t{25} << 20;  ///< of gradients; one block at least
    std::size_t wide_bytes = 4, narrow_bytes = 2;      ///< of an element in the gradient buffers
    bool whole_tensors = false;                        ///< cuts are between stretches only
  };

  /// What a bucket has in one gradient buffer: `parts` are of [begin, end), one for each rank.
  struct Gradients {
    bool narrow = false;
    std::int64_t begin = 0, end = 0;
    std::vector<Part> parts{};
  };
  struct Bucket {
    SpaceRange space;
    std::vector<Part> parts{};  ///< of `space`, one for each rank
    std::vector<Gradients> gradients{};
    std::vector<std::size_t> slots{};  ///< that have gradients in it
  };

  Partition(const SpaceLayout& layout, const Options& options);

  /// From the end of the space to its beginning, as backward completes them.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The parts of a rank, ascending.
  std::vector<SpaceRange> owned(int rank) const;

 private:
  std::vector<Bucket> buckets_;
};

}  // namespace sluice
