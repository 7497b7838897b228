#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/device.h"

namespace sluice::cuda {

/// The object that the id of a CUDA Stream points to. The runtime derives from it and adds members.
struct Queue {
  int capability = 0;  ///< as in DeviceInfo
  int multiprocessors = 0;
  std::size_t shared_limit = 0;  ///< bytes of shared memory that a block may use
  std::size_t l2_bytes = 0;      ///< size of the cache that all multiprocessors share
  std::size_t launches = 0;      ///< kernels and matrix products given to the stream so far
  std::byte* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  /// Counters with which the blocks of a kernel find out who ends last (last_block.h). They are 0
  /// whenever a kernel starts.
  int* arrivals = nullptr;
};

constexpr std::int64_t max_arrivals = 1024;
/// The counters take this much of the memory that is given to Runtime::set_workspace().
constexpr std::size_t arrivals_bytes = max_arrivals * sizeof(int);

inline Queue& queue_of(Stream stream) {
  return *reinterpret_cast<Queue*>(stream.id);  // NOLINT(performance-no-int-to-ptr)
}

/// Divides the memory of a stream's workspace. The caller clears the counters.
inline void set_workspace(Queue& queue, std::byte* start, std::size_t bytes) {
  queue.arrivals = reinterpret_cast<int*>(start);
  queue.workspace = start + arrivals_bytes;
  queue.workspace_bytes = bytes - arrivals_bytes;
}

/// Returns scratch memory for one kernel launch, or for a few consecutive ones on the stream,
/// 256-byte aligned. Throws Error if the workspace is smaller.
std::byte* workspace(Stream stream, std::size_t bytes);

template <class T>
T* workspace(Stream stream, std::int64_t count) {
  return reinterpret_cast<T*>(workspace(stream, static_cast<std::size_t>(count) * sizeof(T)));
}

}  // namespace sluice::cuda
