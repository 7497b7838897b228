#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/parameter.h"
#include "engine/tensor.h"

namespace sluice {

/// Elements [begin, end) of the parameter space.
struct SpaceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const SpaceRange&, const SpaceRange&) = default;
};

/// What decides where things lie.
struct LayoutOptions {
  bool narrow_gradients = false;
  /// Large matrices from this parameter on keep their state on the host; empty: none does.
  std::string first_on_host{};
  /// From this one on, of those, the CPU updates it there; empty: none.
  std::string first_by_cpu{};
  /// From this one on, of those that visit the device, updates are speculative; empty: none are.
  std::string first_speculative{};
};

/// Where every parameter and its gradient lie: pure arithmetic, before any memory is taken.
struct SpaceLayout {
  /// Slots start at multiples of this many elements; the gaps hold zeros for ever.
  static constexpr std::int64_t slot_alignment = 64;
  /// Matrices of fewer elements count as small tensors, of which nothing is quantised or streamed.
  static constexpr std::int64_t bulk_threshold = 4096;
  /// About so many elements are one term of the norm, and stay together on one rank.
  static constexpr std::int64_t block_target = 1 << 14;

  struct Slot {
    std::string name;
    Shape shape;
    std::int64_t offset;  ///< elements
    std::int64_t size;
    bool decay;  ///< weight decay applies: tensors of two or more dimensions
    bool bulk;   ///< a large matrix that is not an embedding
    bool on_host, by_cpu, speculative;
    std::int64_t gradient_offset;
    Initial initial;
    Tensor* tensor;
    Shard shard;

    /// Of all ranks together.
    const Shape& whole() const { return shard.divided() ? shard.whole() : shape; }
  };

  /// A large matrix, cut into blocks of whole rows, or the small tensors of a section that follow
  /// one another and are all divided between ranks or none.
  /// The blocks follow from the parameters alone: norms are summed over them and ranks divide the
  /// space between them, so neither the number of ranks nor the cut of updates changes a bit.
  struct Stretch {
    std::int64_t offset;
    std::int64_t size;  ///< up to the next stretch, gaps included
    std::int64_t gradient_offset;
    std::int64_t block;
    bool narrow;  ///< in which gradient buffer
    /// Other tensor-parallel ranks have other elements; else they have the same.
    bool divided;

    std::int64_t blocks() const { return (size + block - 1) / block; }
  };

  SpaceLayout(const std::vector<Parameter>& parameters, const LayoutOptions& options);

  std::vector<Slot> slots;
  std::vector<Stretch> stretches;               ///< one after another, they cover the space
  std::int64_t size = 0;                        ///< elements, gaps included
  std::int64_t parameters = 0;                  ///< elements, gaps left out
  std::int64_t wide_size = 0, narrow_size = 0;  ///< elements of the gradient buffers

  static std::int64_t padded(std::int64_t elements) {
    return (elements + slot_alignment - 1) / slot_alignment * slot_alignment;
  }
};

}  // namespace sluice
