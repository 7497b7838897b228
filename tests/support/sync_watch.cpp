#include "tests/support/sync_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <utility>

namespace {

std::mutex mutex;
sluice::test::SyncWatch::AtSync watch;  // NOLINT(cert-err58-cpp)

}  // namespace

/// Stands before the C library's function in a program that links this file.
extern "C" int fsync(int descriptor) {
  const long result = ::syscall(SYS_fsync, descriptor);
  const std::lock_guard lock(mutex);
  if (result == 0 && watch)
    watch(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor)));
  return static_cast<int>(result);
}

namespace sluice::test {

SyncWatch::SyncWatch(AtSync at_sync) {
  const std::lock_guard lock(mutex);
  watch = std::move(at_sync);
}

SyncWatch::~SyncWatch() {
  const std::lock_guard lock(mutex);
  watch = nullptr;
}

}  // namespace sluice::test
