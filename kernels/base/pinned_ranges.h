#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>

namespace sluice {

/// The ranges of host memory that were pinned one by one. CUDA refuses a copy that crosses from one
/// into another, or out of one, so such a copy is made piece by piece. Thread-safe.
class PinnedRanges {
 public:
  /// Returns false if a range begins there already.
  bool add(const std::byte* start, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return ranges_.emplace(start, bytes).second;
  }
  void remove(const std::byte* start) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(start);
  }
  /// True if the byte lies in one of them.
  bool contains(const std::byte* at) const {
    const std::lock_guard lock(mutex_);
    const auto after = ranges_.upper_bound(at);
    return after != ranges_.begin() && at < end_of(std::prev(after));
  }
  /// Returns how many of `bytes` from `at` on lie in the same range, or before the next one.
  std::size_t together(const std::byte* at, std::size_t bytes) const {
    const std::lock_guard lock(mutex_);
    const auto after = ranges_.upper_bound(at);
    if (after != ranges_.begin() && at < end_of(std::prev(after)))
      return std::min(bytes, static_cast<std::size_t>(end_of(std::prev(after)) - at));
    if (after == ranges_.end()) return bytes;
    return std::min(bytes, static_cast<std::size_t>(after->first - at));
  }
  /// Calls body(offset, count) for the pieces of [at, at + bytes) that one copy may cover.
  template <class Body>
  void for_each_piece(const std::byte* at, std::size_t bytes, Body&& body) const {
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t count = together(at + done, bytes - done);
      body(done, count);
      done += count;
    }
  }

 private:
  using Ranges = std::map<const std::byte*, std::size_t>;
  static const std::byte* end_of(Ranges::const_iterator range) {
    return range->first + range->second;
  }

  mutable std::mutex mutex_;
  Ranges ranges_;
};

}  // namespace sluice
