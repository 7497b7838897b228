#pragma once

#include "kernels/cuda/target.h"

namespace sluice::cuda {

/// Work of one launch on several arrays, of which each takes some blocks of the grid. It is passed
/// as a kernel's argument, of which there may be 4 KiB. A kernel declares it `__grid_constant__
/// const`, or each thread would copy all of it.
template <class Part>
class Parts {
 public:
  static constexpr unsigned capacity = 4000 / (sizeof(Part) + sizeof(unsigned));

  bool full() const { return count_ == capacity; }
  unsigned blocks() const { return count_ == 0 ? 0 : ends_[count_ - 1]; }
  /// Adds a part that takes `blocks` blocks.
  void add(const Part& part, unsigned blocks) {
    ends_[count_] = this->blocks() + blocks;
    parts_[count_++] = part;
  }

  /// A part and the number of a block within it.
  struct Place {
    const Part& part;
    unsigned block;
  };
  __device__ __forceinline__ Place of_block(unsigned block) const {
    unsigned first = 0;
    for (unsigned last = count_ - 1; first < last;) {
      const unsigned middle = (first + last) / 2;
      if (block < ends_[middle])
        last = middle;
      else
        first = middle + 1;
    }
    return {parts_[first], block - (first == 0 ? 0 : ends_[first - 1])};
  }

 private:
  unsigned count_ = 0;
  unsigned ends_[capacity] = {};  ///< first block behind each part
  Part parts_[capacity] = {};
};

}  // namespace sluice::cuda
