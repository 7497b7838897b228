#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/parameter.h"
#include "engine/tensor.h"
#include "optim/space/flat_buffer.h"
#include "optim/space/matrix_shard.h"
#include "optim/space/state_layout.h"

namespace sluice {

/// Elements [begin, end) of the parameter space.
struct SpaceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const SpaceRange&, const SpaceRange&) = default;
};

/// Returns true for a matrix of SpaceLayout::bulk_threshold elements or more, or a shard of one.
/// The size of the whole matrix decides, so that all ranks treat their shards alike.
bool is_large_matrix(const Parameter& parameter);

/// Options that decide the positions in the space.
struct LayoutOptions {
  bool narrow_gradients = false;
  /// residency[s] says where the state of the large matrices of section s (Parameter::section) is
  /// kept; sections beyond the end: on the device.
  std::vector<Residency> residency{};
  bool cpu_tables = false;  ///< the state of large embeddings and of the head is Residency::cpu
};

/// A tensor of a model's file: the elements of a whole slot from `first` on.
struct StoredSlice {
  std::string name;
  Shape shape;
  std::int64_t first;
};

/// The offsets of every parameter and its gradient in the flat buffers. It is computed before
/// memory is allocated.
struct SpaceLayout {
  /// Slots start at multiples of this many elements. The gaps between them always hold zeros.
  static constexpr std::int64_t slot_alignment = 64;
  /// Rows of zeros follow a large embedding table up to a multiple of this many rows. cuBLASLt has
  /// its fast kernels only for sizes that are multiples of 8, and 50257 is odd.
  static constexpr std::int64_t table_rows = 64;
  /// Matrices of fewer elements count as small tensors, which are never quantised or streamed.
  static constexpr std::int64_t bulk_threshold = 4096;
  /// Approximate number of elements in a block. The gradient norm is summed block by block, and no
  /// block is split between ranks.
  static constexpr std::int64_t block_target = 1 << 14;

  struct Slot {
    std::string name;
    Shape shape;
    std::int64_t offset;  ///< in elements
    std::int64_t size;
    std::int64_t spare_rows;   ///< rows of zeros that belong to the gap behind it
    std::int64_t padded_size;  ///< up to the next slot
    bool decay;                ///< weight decay applies: the tensor has two or more dimensions
    bool bulk;                 ///< a large matrix that is not an embedding
    bool embedding;            ///< Parameter::embedding
    bool narrow;               ///< its gradient is in the narrow buffer
    Residency residency;
    int section;                   ///< Parameter::section
    std::int64_t gradient_offset;  ///< in elements, in its gradient buffer
    Initial initial;
    Tensor* tensor;
    Shard shard;
    std::vector<StoredPart> parts;  ///< Parameter::parts
    bool in_out;                    ///< Parameter::in_out
    QuantizedMatrix* quantized;     ///< Parameter::quantized

    /// Shape of the whole tensor, all ranks' shards together.
    const Shape& whole() const { return shard.divided() ? shard.whole() : shape; }
    /// The tensors of the whole slot in a model's file, one after the other.
    std::vector<StoredSlice> stored() const;
    /// True for a matrix of a hidden layer: neither an embedding nor the head.
    bool hidden() const { return shape.size() >= 2 && !embedding; }
    /// What this rank has of each of these tensors, of a slot that is a matrix.
    std::vector<MatrixShard> matrices() const;
  };

  /// A range of the space that is cut into blocks: a large matrix (blocks of whole rows), or
  /// consecutive small tensors of one section, either all divided between tensor-parallel ranks or
  /// none. The blocks depend on the parameters alone. Norms are summed by block, and ranks divide
  /// the space between blocks. So neither the number of ranks nor the size of chunks changes a bit
  /// of the result.
  struct Stretch {
    std::int64_t offset;
    std::int64_t size;  ///< up to the next stretch, gaps included
    std::int64_t gradient_offset;
    std::int64_t block;  ///< elements per block; the last one may be shorter
    bool narrow;         ///< its gradient is in the narrow buffer
    /// True for shards, which differ between tensor-parallel ranks; false if all ranks have the
    /// same elements.
    bool divided;
    int section;  ///< Parameter::section

    std::int64_t blocks() const { return (size + block - 1) / block; }
  };

  SpaceLayout(const std::vector<Parameter>& parameters, const LayoutOptions& options);

  /// The slots of the space, and of one of the two gradient buffers, as parts of a FlatBuffer.
  std::vector<FlatBuffer::Part> weight_parts() const;
  std::vector<FlatBuffer::Part> gradient_parts(bool narrow) const;
  /// True if some weights rest in host memory.
  bool rests() const;

  std::vector<Slot> slots;
  std::vector<Stretch> stretches;               ///< they follow one another and cover the space
  std::int64_t size = 0;                        ///< in elements, gaps included
  std::int64_t parameters = 0;                  ///< in elements, gaps left out
  std::int64_t wide_size = 0, narrow_size = 0;  ///< in elements, of the two gradient buffers

  static std::int64_t padded(std::int64_t elements) {
    return (elements + slot_alignment - 1) / slot_alignment * slot_alignment;
  }
};

}  // namespace sluice
