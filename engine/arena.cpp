#include "engine/arena.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// A hash of a block (the finalizer of splitmix64), for sums of which the order does not matter.
std::uint64_t mixed(std::size_t offset, std::size_t bytes) {
  std::uint64_t x = offset / Arena::alignment + (std::uint64_t{bytes / Arena::alignment} << 32);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

std::string_view name_of(MemoryUse use) {
  constexpr std::array<std::string_view, memory_uses> names{
      "weights", "gradients", "state", "staging", "activations", "head", "workspace", "checkpoint"};
  return names[static_cast<std::size_t>(use)];
}

Arena::Arena(std::size_t capacity) : capacity_(capacity / alignment * alignment) {}

std::size_t Arena::allocate(std::size_t bytes, MemoryUse use) {
  const std::lock_guard lock(mutex_);
  // Compared before rounding up, because rounding up could wrap around.
  if (bytes > capacity_) refuse(bytes);
  const std::size_t wanted = std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
  std::size_t offset = frontier_;
  if (const auto best = free_by_size_.lower_bound({wanted, 0}); best != free_by_size_.end()) {
    const std::size_t size = best->first;
    offset = best->second;
    erase_free(offset, size);
    insert_free(offset + wanted, size - wanted);
  } else {
    if (wanted > capacity_ - frontier_) refuse(wanted);
    frontier_ += wanted;
  }
  used_.emplace(offset, Block{wanted, use});
  layout_ += mixed(offset, wanted);
  in_use_ += wanted;
  by_use_[static_cast<std::size_t>(use)] += wanted;
  if (in_use_ > peak_) {
    peak_ = in_use_;
    peak_by_use_ = by_use_;
  }
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
  auto [bytes, use] = block->second;
  used_.erase(block);
  layout_ -= mixed(offset, bytes);
  in_use_ -= bytes;
  by_use_[static_cast<std::size_t>(use)] -= bytes;
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
  if (offset + bytes == frontier_)
    frontier_ = offset;
  else
    insert_free(offset, bytes);
}

MemoryByUse Arena::peak_by_use() const {
  const std::lock_guard lock(mutex_);
  return peak_by_use_;
}

std::uint64_t Arena::layout() const {
  const std::lock_guard lock(mutex_);
  return layout_;
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
