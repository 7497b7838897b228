#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "kernels/cpu/thread_pool.h"

namespace sluice::cpu {

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
