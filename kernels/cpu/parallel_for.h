#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

// The threads of the CPU kernels.

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

/// Calls body(i) for i in [0, count), spread over the threads. Iterations must not depend on each
/// other or on the thread that runs them; results are then equal for any number of threads. The
/// body must not throw.
template <class Body>
void parallel_for(std::int64_t count, Body&& body) {
  if (count <= 1 || threads() == 1) {
    for (std::int64_t i = 0; i < count; ++i)
      body(i);
    return;
  }
  using Bare = std::remove_reference_t<Body>;
  const Task task = [](void* context, std::int64_t i) { (*static_cast<Bare*>(context))(i); };
  run_on_threads(count, task, const_cast<std::remove_const_t<Bare>*>(std::addressof(body)));
}

/// Divides [0, size) into pieces of `grain` and calls body(begin, end) for each.
template <class Body>
void parallel_ranges(std::int64_t size, std::int64_t grain, Body&& body) {
  const std::int64_t pieces = (size + grain - 1) / grain;
  parallel_for(pieces, [&](std::int64_t piece) {
    const std::int64_t begin = piece * grain;
    body(begin, begin + grain < size ? begin + grain : size);
  });
}

}  // namespace sluice::cpu
