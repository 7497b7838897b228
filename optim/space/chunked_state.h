#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/host_memory.h"
#include "engine/offload/file_region.h"
#include "engine/tensor.h"
#include "optim/space/matrix_shard.h"
#include "optim/space/state_layout.h"

namespace sluice {

/// A contiguous range of the parameter space that one kernel launch updates: some rows of one large
/// matrix (`bulk`), or consecutive small tensors and embeddings. With SpaceOptions::whole_tensors
/// every chunk is one tensor, without the gap after it.
struct Chunk {
  /// A whole weight of a hidden layer.
  struct HiddenMatrix {
    std::vector<MatrixShard> parts;  ///< those that files keep apart; one: they do not
    bool in_out;                     ///< Parameter::in_out
  };

  std::int64_t offset;  ///< in elements, from the start of the space
  std::int64_t size;
  std::int64_t gradient_offset;  ///< in elements, in its gradient buffer
  std::int64_t row_length;       ///< elements per row of a bulk chunk or a whole matrix; else 0
  bool decay;                    ///< weight decay applies
  bool bulk;
  /// Offset in the random stream for stochastic rounding. It depends on the parameter alone, so
  /// that a rank with part of a model draws the same numbers as a rank with all of it.
  std::int64_t random_offset = 0;
  Residency residency = Residency::device;
  int section = 0;    ///< Parameter::section of a bulk chunk
  bool owned = true;  ///< false: another rank keeps its state and updates it
  /// Given with SpaceOptions::whole_tensors, for matrices other than embeddings and the head.
  std::optional<HiddenMatrix> hidden{};
};

/// One array of training state for a chunk.
struct StateField {
  std::string_view name;  ///< for example "first_moment"; part of checkpoint names
  DType dtype;
  std::int64_t count;  ///< number of elements
};

/// Stores the optimizer state or the master weights of all chunks. Each chunk's state is
/// contiguous, so that one copy moves it. It is kept on the device, in host memory, or in a file.
class ChunkedState {
 public:
  using Fields = std::function<std::vector<StateField>(const Chunk&)>;

  /// Allocates all arrays, zeroed. Throws Error if `host` lacks the memory that a chunk's residency
  /// needs. With HostMemory::file the file takes what would rest in host memory. A chunk of another
  /// rank has fields but no memory: reads of it return zeros, and writes to it are dropped.
  ChunkedState(const std::vector<Chunk>& chunks, const Fields& fields, const DevicePtr& device,
               const HostMemory& host);

  const std::vector<StateField>& fields(std::size_t chunk) const { return entries_[chunk].fields; }
  /// True if this rank keeps state for the chunk.
  bool has(std::size_t chunk) const { return home(chunk) || in_file(chunk); }
  /// True if that state is in a file.
  bool in_file(std::size_t chunk) const { return region(chunk).bytes > 0; }
  /// The part of the file that holds the chunk's state; empty if it is not in a file.
  const FileRegion& region(std::size_t chunk) const { return entries_[chunk].region; }
  /// The memory that holds the chunk's state. None for a chunk whose state is in a file or of
  /// another rank, or that has no fields.
  const Tensor& home(std::size_t chunk) const { return entries_[chunk].home; }
  /// The memory that receives a speculative chunk's updated state, so that the update can be
  /// undone. For other chunks it is home().
  const Tensor& next_home(std::size_t chunk) const {
    return entries_[chunk].spare ? entries_[chunk].spare : entries_[chunk].home;
  }
  /// Accepts a speculative chunk's update: its next home becomes its home.
  void move_home(std::size_t chunk) { std::swap(entries_[chunk].home, entries_[chunk].spare); }
  /// Views of the chunk's fields if its state begins at `start`; without `start`, at home.
  std::vector<View> views(std::size_t chunk, std::byte* start) const;
  std::vector<View> views(std::size_t chunk) const;

  /// Reads elements of a field from `first` on, as many as `out` holds; `field` is an index in
  /// fields(chunk). No update may be under way.
  void read(std::size_t chunk, std::size_t field, std::int64_t first,
            std::span<std::byte> out) const;
  void write(std::size_t chunk, std::size_t field, std::int64_t first,
             std::span<const std::byte> in) const;

 private:
  struct Entry {
    std::vector<StateField> fields;
    std::vector<std::int64_t> offsets;  ///< in bytes
    Tensor home, spare;
    FileRegion region{};
  };
  Tensor piece(std::size_t chunk, std::size_t field, std::int64_t first, std::size_t bytes) const;

  std::uint64_t offset_of(std::size_t chunk, std::size_t field, std::int64_t first) const;

  std::vector<Entry> entries_;
  std::shared_ptr<FileMemory> file_;  ///< null: no state is in a file
};

}  // namespace sluice
