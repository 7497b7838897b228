#pragma once

#include <cstdint>

// The threads of the CPU kernels. Kernels use parallel_for.h; this is what stands behind it.

namespace sluice::cpu {

/// Cores that this process may use.
int available_cores();

/// Threads that kernels use from now on, in all of the process; 0: available_cores(). For `main`.
void set_threads(int threads);
/// Threads that a kernel called here uses: those of set_threads(), or of the innermost ThreadLimit.
int threads();

/// While it lives, kernels called by this thread use `threads` threads.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_;
};

/// Calls task(context, i) for each i in [0, count), on the calling thread and on threads() - 1
/// helpers, which every calling thread has of its own. Indices are handed out one at a time, in
/// order. Returns when all calls have returned. Within a task it makes all calls itself. A task
/// must not throw.
///
/// A helper that the system does not run takes no index, so nobody waits for it. Who waits does so
/// in a loop for a short time, and then sleeps: beside other busy programs a waiting thread would
/// take the core from a working one.
using Task = void (*)(void* context, std::int64_t index);
void run_on_threads(std::int64_t count, Task task, void* context);

}  // namespace sluice::cpu
