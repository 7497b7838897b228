#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/host_memory.h"
#include "engine/tensor.h"

namespace sluice {

/// A stretch of the parameter space that is updated by one launch: some rows of one large matrix
/// (`bulk`), or small tensors and embeddings that follow one another. In a space of whole tensors
/// every chunk is one tensor, without the gap after it.
struct Chunk {
  std::int64_t offset;  ///< elements
  std::int64_t size;
  std::int64_t gradient_offset;  ///< in the gradient buffer that it belongs to
  std::int64_t row_length;  ///< of the matrix; 0 unless bulk or a whole tensor, and for vectors
  bool decay;               ///< weight decay applies
  bool bulk;
  /// Where its random numbers begin in the run's stream: a function of the parameter, so that ranks
  /// with parts of a model draw those of one that has all of it.
  std::int64_t random_offset = 0;
  bool on_host = false;  ///< its state rests in host memory and visits the device for the update,
  bool by_cpu = false;   ///< or is updated where it rests
  /// Visits it before anybody knows whether that update stands: what comes of it has a place of
  /// its own to rest.
  bool speculative = false;
  bool mine = true;  ///< false: another rank keeps its state and updates it
};

/// One array that training carries for a chunk.
struct StateField {
  std::string_view name;  ///< "first_moment"; part of checkpoint names
  DType dtype;
  std::int64_t count;  ///< elements
};

/// Arrays that training carries beside the working weights. What belongs to a chunk is contiguous,
/// so that it moves in one copy, and rests on the device or on the host.
class ChunkedState {
 public:
  using Fields = std::function<std::vector<StateField>(const Chunk&)>;

  /// All zero. What of `host` chunks rest in has to be there. What belongs to another rank's chunk
  /// has fields but no memory: it reads as zeros, and what is written to it is dropped.
  ChunkedState(const std::vector<Chunk>& chunks, const Fields& fields, const DevicePtr& device,
               const HostMemory& host);

  const std::vector<StateField>& fields(std::size_t chunk) const { return entries_[chunk].fields; }
  /// Where the chunk's bytes rest; none if it has no fields or they are another rank's.
  const Tensor& home(std::size_t chunk) const { return entries_[chunk].home; }
  /// Where a speculative chunk's bytes rest after its update; elsewhere the home.
  const Tensor& next_home(std::size_t chunk) const {
    return entries_[chunk].spare ? entries_[chunk].spare : entries_[chunk].home;
  }
  /// A speculative chunk's update stands.
  void move_home(std::size_t chunk) { std::swap(entries_[chunk].home, entries_[chunk].spare); }
  /// The fields of a chunk whose bytes have been brought to `start`.
  std::vector<View> views(std::size_t chunk, std::byte* start) const;
  std::vector<View> views(std::size_t chunk) const;

  /// Elements [first, ...) of a field at home, by its place in fields(chunk). The caller has made
  /// sure that no update is under way.
  void read(std::size_t chunk, std::size_t field, std::int64_t first,
            std::span<std::byte> out) const;
  void write(std::size_t chunk, std::size_t field, std::int64_t first,
             std::span<const std::byte> in) const;

 private:
  struct Entry {
    std::vector<StateField> fields;
    std::vector<std::int64_t> offsets;  ///< bytes
    Tensor home, spare;
  };
  Tensor piece(std::size_t chunk, std::size_t field, std::int64_t first, std::size_t bytes) const;

  std::vector<Entry> entries_;
};

}  // namespace sluice
