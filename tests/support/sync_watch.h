#pragma once

#include <filesystem>
#include <functional>

namespace sluice::test {

/// Calls `at_sync(path)` after every fsync() of this program, with the path that the file or folder
/// has then. What a sync comes after decides what a power failure leaves, and no result of a
/// function shows it. One at a time.
class SyncWatch {
 public:
  using AtSync = std::function<void(const std::filesystem::path&)>;

  explicit SyncWatch(AtSync at_sync);
  ~SyncWatch();
  SyncWatch(const SyncWatch&) = delete;
  SyncWatch& operator=(const SyncWatch&) = delete;
};

}  // namespace sluice::test
