#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace sluice {

/// Purpose of a block of memory; these are the categories of the memory plan.
enum class MemoryUse : std::uint8_t {
  weights,
  gradients,
  state,
  staging,
  activations,
  head,
  workspace,
  checkpoint
};
constexpr std::size_t memory_uses = 8;
std::string_view name_of(MemoryUse use);
using MemoryByUse = std::array<std::size_t, memory_uses>;

/// Divides an address range of `capacity` bytes into blocks. A block goes into the tightest free
/// hole, or else into the untouched rest above all blocks; neighbouring holes are merged. The arena
/// deals in offsets only, and the capacity decides only whether a call is refused, so the same
/// calls give the same offsets and the same peak on every device, `meta` included. Thread-safe.
class Arena {
 public:
  static constexpr std::size_t alignment = 256;

  explicit Arena(std::size_t capacity);

  /// Returns the offset of a block. Sizes are rounded up to `alignment`. When nothing fits, throws
  /// Error with the bytes wanted, in use and allowed.
  std::size_t allocate(std::size_t bytes, MemoryUse use = MemoryUse::activations);
  void release(std::size_t offset);

  std::size_t in_use() const;
  /// The largest number of bytes in use at one time since construction.
  std::size_t peak() const;
  /// End of the highest block ever handed out: the bytes that the device had to back with memory.
  std::size_t high_water() const;
  std::size_t capacity() const { return capacity_; }
  /// A number that is equal where the same blocks are in use, and practically always differs where
  /// others are.
  std::uint64_t layout() const;
  /// Bytes in use when `peak` was reached, by purpose.
  MemoryByUse peak_by_use() const;

 private:
  [[noreturn]] void refuse(std::size_t bytes) const;
  void insert_free(std::size_t offset, std::size_t bytes);
  void erase_free(std::size_t offset, std::size_t bytes);

  struct Block {
    std::size_t bytes;
    MemoryUse use;
  };

  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::size_t in_use_ = 0;
  std::size_t peak_ = 0;
  std::size_t high_water_ = 0;
  std::size_t frontier_ = 0;  // the untouched rest begins here
  std::uint64_t layout_ = 0;
  MemoryByUse by_use_{}, peak_by_use_{};
  std::map<std::size_t, Block> used_;                           // by offset
  std::map<std::size_t, std::size_t> free_;                     // holes: offset -> bytes
  std::set<std::pair<std::size_t, std::size_t>> free_by_size_;  // (bytes, offset)
};

}  // namespace sluice
