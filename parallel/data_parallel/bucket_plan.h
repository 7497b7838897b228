#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "optim/space/space_layout.h"
#include "parallel/comm/backend/backend.h"

namespace sluice {

/// Divides the parameter space into gradient buckets and between ranks. A bucket is reduced as a
/// whole, as soon as backward has completed its gradients. Each bucket is cut into one part per
/// rank, so that in ZeRO-1 (Rajbhandari et al., 2020) every reduction is spread over all ranks. All
/// cuts are at blocks of the layout.
class BucketPlan {
 public:
  struct Options {
    int ranks = 1;
    std::size_t bucket_bytes = std::size_t{25} << 20;  ///< of gradients; a block may be larger
    std::size_t wide_bytes = 4, narrow_bytes = 2;      ///< bytes per gradient in the two buffers
    bool whole_tensors = false;                        ///< cut only between stretches
    bool by_section = false;                           ///< a bucket is of one section

    friend bool operator==(const Options&, const Options&) = default;
  };

  /// The gradients of a bucket in one gradient buffer. `parts` divide [begin, end), one per rank;
  /// their offsets count from `begin`.
  struct Gradients {
    bool narrow = false;
    std::int64_t begin = 0, end = 0;
    std::vector<Part> parts{};
  };
  struct Bucket {
    SpaceRange space;
    std::vector<Part> parts{};  ///< one per rank; offsets count from space.begin
    std::vector<Gradients> gradients{};
    std::vector<std::size_t> slots{};  ///< the slots with gradients in this bucket
  };

  /// `like`: the layout of another rank that divides the same tensors, with `whole_tensors`. The
  /// buckets and parts are of the tensors that they would be of there, so ranks whose shards differ
  /// in size own the same tensors and update them in the same order.
  BucketPlan(const SpaceLayout& layout, const Options& options, const SpaceLayout* like = nullptr);

  /// All buckets, from the end of the space to its beginning, in the order of backward.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The parts of a rank, ascending.
  std::vector<SpaceRange> owned(int rank) const;

  /// The most elements of a bucket whose parts are padded to one size (padded_count).
  struct Padded {
    std::int64_t weights = 0, wide = 0, narrow = 0;  ///< wide, narrow: gradients
  };
  const Padded& padded() const { return padded_; }

 private:
  std::vector<Bucket> buckets_;
  Padded padded_;
};

}  // namespace sluice
