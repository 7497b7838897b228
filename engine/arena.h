#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace sluice {

/// Divides an address range of `capacity` bytes into blocks: best fit, neighbours merged. It deals
/// in offsets only, so the same calls give the same offsets and the same peak on every device,
/// `meta` included. Safe to call from several threads.
class Arena {
 public:
  static constexpr std::size_t alignment = 256;

  explicit Arena(std::size_t capacity);

  /// The offset of a block; sizes are rounded up to `alignment`. Throws Error with the bytes
  /// wanted, in use and allowed when nothing fits.
  std::size_t allocate(std::size_t bytes);
  void release(std::size_t offset);

  std::size_t in_use() const;
  /// The most bytes in use at one time since construction.
  std::size_t peak() const;
  /// The end of the highest block ever handed out: what the device had to back with memory.
  std::size_t high_water() const;
  std::size_t capacity() const { return capacity_; }

 private:
  [[noreturn]] void refuse(std::size_t bytes) const;
  void insert_free(std::size_t offset, std::size_t bytes);
  void erase_free(std::size_t offset, std::size_t bytes);

  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::size_t in_use_ = 0;
  std::size_t peak_ = 0;
  std::size_t high_water_ = 0;
  std::map<std::size_t, std::size_t> used_;                     // offset -> bytes
  std::map<std::size_t, std::size_t> free_;                     // offset -> bytes
  std::set<std::pair<std::size_t, std::size_t>> free_by_size_;  // (bytes, offset)
};

}  // namespace sluice
