#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/host_memory.h"
#include "engine/tensor.h"
#include "optim/space/state_layout.h"

namespace sluice {

/// A stretch of the parameter space that is updated by one launch: some rows of one large matrix
/// (`bulk`), or consecutive small tensors and embeddings. In a space of whole tensors every chunk
/// is one tensor, without the gap after it.
struct Chunk {
  std::int64_t offset;  ///< in elements
  std::int64_t size;
  std::int64_t gradient_offset;  ///< position in the gradient buffer that holds its gradient
  std::int64_t row_length;  ///< of the matrix; 0 unless bulk or a whole tensor, and for vectors
  bool decay;               ///< weight decay applies
  bool bulk;
  /// Position in the random stream at which its numbers begin. It depends on the parameter alone,
  /// so that a rank with part of a model draws the same numbers as a rank with all of it.
  std::int64_t random_offset = 0;
  Residency residency = Residency::device;
  bool mine = true;  ///< false: another rank keeps its state and updates it
};

/// One array of training state for a chunk.
struct StateField {
  std::string_view name;  ///< for example "first_moment"; part of checkpoint names
  DType dtype;
  std::int64_t count;  ///< number of elements
};

/// Training state beside the working weights. The state of a chunk is contiguous, so that it moves
/// in one copy. It rests on the device or in host memory.
class ChunkedState {
 public:
  using Fields = std::function<std::vector<StateField>(const Chunk&)>;

  /// Allocates all arrays, zeroed. The memories of `host` that chunks use must exist. A chunk of
  /// another rank has fields but no memory: reads of it return zeros, and writes to it are dropped.
  ChunkedState(const std::vector<Chunk>& chunks, const Fields& fields, const DevicePtr& device,
               const HostMemory& host);

  const std::vector<StateField>& fields(std::size_t chunk) const { return entries_[chunk].fields; }
  /// The memory in which the chunk's state rests; none without fields or for another rank's chunk.
  const Tensor& home(std::size_t chunk) const { return entries_[chunk].home; }
  /// The memory that receives a speculative chunk's updated state, so that the update can be
  /// undone; for other chunks their home.
  const Tensor& next_home(std::size_t chunk) const {
    return entries_[chunk].spare ? entries_[chunk].spare : entries_[chunk].home;
  }
  /// Accepts a speculative chunk's update: its next home becomes its home.
  void move_home(std::size_t chunk) { std::swap(entries_[chunk].home, entries_[chunk].spare); }
  /// The fields of a chunk whose state has been copied to `start`.
  std::vector<View> views(std::size_t chunk, std::byte* start) const;
  std::vector<View> views(std::size_t chunk) const;

  /// Reads elements [first, ...) of a field at home; `field` is its index in fields(chunk). The
  /// caller makes sure that no update is under way.
  void read(std::size_t chunk, std::size_t field, std::int64_t first,
            std::span<std::byte> out) const;
  void write(std::size_t chunk, std::size_t field, std::int64_t first,
             std::span<const std::byte> in) const;

 private:
  struct Entry {
    std::vector<StateField> fields;
    std::vector<std::int64_t> offsets;  ///< in bytes
    Tensor home, spare;
  };
  Tensor piece(std::size_t chunk, std::size_t field, std::int64_t first, std::size_t bytes) const;

  std::vector<Entry> entries_;
};

}  // namespace sluice
