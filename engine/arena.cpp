#include "engine/arena.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {

Arena::Arena(std::size_t capacity) : capacity_(capacity / alignment * alignment) {
  insert_free(0, capacity_);
}

std::size_t Arena::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  // Compared before rounding up, which could wrap.
  if (bytes > capacity_) refuse(bytes);
  const std::size_t wanted = std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
  const auto best = free_by_size_.lower_bound({wanted, 0});
  if (best == free_by_size_.end()) refuse(wanted);
  const auto [size, offset] = *best;
  erase_free(offset, size);
  if (size > wanted) insert_free(offset + wanted, size - wanted);
  used_.emplace(offset, wanted);
  in_use_ += wanted;
  peak_ = std::max(peak_, in_use_);
  high_water_ = std::max(high_water_, offset + wanted);
  return offset;
}

void Arena::refuse(std::size_t bytes) const {
  fail(
      fmt::format("out of memory: {} bytes wanted, {} of {} in use; use a smaller micro-batch, a "
                  "shorter sequence or a larger memory budget",
                  bytes, in_use_, capacity_));
}

void Arena::release(std::size_t offset) {
  const std::lock_guard lock(mutex_);
  const auto block = used_.find(offset);
  check(block != used_.end(), "a block was released that the arena never handed out");
  std::size_t bytes = block->second;
  used_.erase(block);
  in_use_ -= bytes;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    const auto [next_offset, next_bytes] = *next;
    erase_free(next_offset, next_bytes);
    bytes += next_bytes;
  }
  next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto [previous_offset, previous_bytes] = *std::prev(next);
    if (previous_offset + previous_bytes == offset) {
      erase_free(previous_offset, previous_bytes);
      offset = previous_offset;
      bytes += previous_bytes;
    }
  }
  insert_free(offset, bytes);
}

std::size_t Arena::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

std::size_t Arena::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

std::size_t Arena::high_water() const {
  const std::lock_guard lock(mutex_);
  return high_water_;
}

void Arena::insert_free(std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void Arena::erase_free(std::size_t offset, std::size_t bytes) {
  free_.erase(offset);
  free_by_size_.erase({bytes, offset});
}

}  // namespace sluice
