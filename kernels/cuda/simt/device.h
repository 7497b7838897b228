#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/base/runtime.h"
#include "kernels/cuda/simt/block.h"

namespace sluice::simt {

struct Options {
  std::uint64_t seed = 1;  ///< for the order of threads, blocks and streams
  int capability = 90;     ///< selects kernels and the shared memory per block
  bool protect = true;     ///< the host may not touch device memory, as on a GPU
  std::string uuid = "GPU-simt";
};

/// A CUDA device emulated on the host. Streams are queues: launched work waits until somebody
/// synchronizes. It is then taken from the queues in a random order that streams and events allow,
/// so that a missing wait leads to a wrong number. A query whether an event has been reached runs a
/// little of the work in the same way.
std::unique_ptr<Runtime> make_runtime(const Options& options);

void enqueue(Stream stream, Launch launch);
/// Enqueues host work in stream order; used for matrix products.
void enqueue(Stream stream, std::function<void()> work);
/// Enqueues work that starts when `ready` is true, which the work of other devices makes it: a
/// kernel that waits for kernels of other GPUs. `ready` must not touch device memory.
void enqueue_when(Stream stream, std::function<bool()> ready, std::function<void()> work);

/// Shared memory of the running block. Throws Error if the launch asked for less.
std::byte* shared_memory(std::size_t bytes, std::size_t alignment);

}  // namespace sluice::simt
