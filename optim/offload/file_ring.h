#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "engine/host_memory.h"
#include "engine/offload/file_memory.h"
#include "engine/tensor.h"

namespace sluice {

/// Streams optimizer state from a file to memory and back, item by item in a fixed order. A ring of
/// buffers in memory holds the items that are read ahead, updated, or on their way back. Transfers
/// run beside the caller: a buffer is written back and filled with a later item in one transfer.
class FileRing {
 public:
  /// An item is one or more regions, which lie one after another in a buffer.
  using Item = std::vector<FileMemory::Region>;

  /// Allocates `buffers` buffers from `memory`, each as large as the largest item.
  FileRing(std::shared_ptr<FileMemory> file, const DevicePtr& memory, std::vector<Item> items,
           int buffers);
  /// Waits for transfers under way.
  ~FileRing();
  FileRing(const FileRing&) = delete;
  FileRing& operator=(const FileRing&) = delete;

  /// Starts to read the first items of a round; may be called before the round begins.
  void prefetch();
  /// Waits until the next item has been read. Returns the addresses of its parts.
  std::vector<std::byte*> take();
  /// Call it once the item taken last has been updated. Starts to write it back.
  void done();
  /// Begins the next round. Items that were read ahead are kept.
  void rewind();
  /// Drops items that were read ahead. Call it before the state in the file is written to.
  void forget();
  /// Waits until all items are back in the file. Throws Error if one could not be written.
  void synchronize();

  /// Bytes read and written by the last complete round.
  const StreamedBytes& moved() const { return last_moved_; }

 private:
  struct Buffer {
    Tensor memory;
    std::byte* start;                     ///< aligned
    std::shared_future<void> transfer{};  ///< the last; not valid before the first
  };
  std::vector<FileMemory::Part> parts_of(std::size_t item, const Buffer& buffer) const;
  void start(std::size_t buffer, std::vector<FileMemory::Part> written);
  Buffer& buffer_of(std::size_t turn) { return buffers_[turn % buffers_.size()]; }

  std::shared_ptr<FileMemory> file_;
  std::vector<Item> items_;
  std::vector<Buffer> buffers_;
  std::vector<std::shared_future<void>> written_;  ///< by item: the transfer that wrote it last
  std::size_t turn_ = 0;                           ///< number of the next item over all rounds
  std::size_t fetched_ = 0, taken_ = 0;            ///< items of this round so far
  StreamedBytes moved_, last_moved_;
};

}  // namespace sluice
