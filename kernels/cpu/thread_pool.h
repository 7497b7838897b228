#pragma once

#include <cstdint>

// The threads of the CPU kernels. Kernels use parallel_for.h, which is built on this header.

namespace sluice::cpu {

/// Number of cores that this process may use.
int available_cores();

/// Sets the threads per kernel for the whole process; 0: available_cores(). Called by `main`.
void set_threads(int threads);
/// Threads that a kernel called here uses: set_threads()'s number, or the innermost ThreadLimit's.
int threads();

/// While an object of this class lives, kernels called by this thread use `threads` threads.
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
/// helpers, which belong to the calling thread. Indices are handed out one at a time, in order.
/// Returns when all calls have returned. Called within a task, it makes all calls on that thread. A
/// task must not throw.
///
/// A helper that the system does not schedule takes no index, so nobody waits for it. A waiting
/// thread spins for a short time and then sleeps, because beside other busy programs a spinning
/// thread would take the core from a working one.
using Task = void (*)(void* context, std::int64_t index);
void run_on_threads(std::int64_t count, Task task, void* context);

}  // namespace sluice::cpu
