#pragma once

#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace sluice::cpu {

/// Threads that kernels use from now on; 0: all cores. For `main`.
inline void set_threads(int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads > 0 ? threads : omp_get_num_procs());
#else
  static_cast<void>(threads);
#endif
}
inline int threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

/// Calls body(i) for i in [0, count), spread over the OpenMP threads. Iterations must be
/// independent of each other and of which thread runs them: that keeps results equal for any
/// number of threads. Nothing else in the project names a thread library for kernels.
template <class Body>
void parallel_for(std::int64_t count, Body&& body) {
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
#endif
  for (std::int64_t i = 0; i < count; ++i)
    body(i);
}

/// Cuts [0, size) into pieces of `grain` and calls body(begin, end) for each.
template <class Body>
void parallel_ranges(std::int64_t size, std::int64_t grain, Body&& body) {
  const std::int64_t pieces = (size + grain - 1) / grain;
  parallel_for(pieces, [&](std::int64_t piece) {
    const std::int64_t begin = piece * grain;
    body(begin, begin + grain < size ? begin + grain : size);
  });
}

}  // namespace sluice::cpu
