#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/base/runtime.h"
#include "kernels/cuda/simt/block.h"

namespace sluice::simt {

struct Options {
  std::uint64_t seed = 1;  ///< of the order of threads, blocks and streams
  int capability = 90;     ///< decides which kernels are chosen, and the shared memory of a block
  bool protect = true;     ///< the host may not touch device memory, as on a GPU
};

/// A CUDA device on the host. Streams are queues: what is launched waits until somebody
/// synchronises, and then work is taken from the queues in a random order that streams and events
/// allow, so that a wait that was left out turns into a wrong number. Asking whether an event has
/// been reached runs a little of it in the same way.
std::unique_ptr<Runtime> make_runtime(const Options& options);

void enqueue(Stream stream, Launch launch);
/// Host work in stream order: matrix products.
void enqueue(Stream stream, std::function<void()> work);

/// Shared memory of the running block. Throws Error where the launch asked for less.
std::byte* shared_memory(std::size_t bytes, std::size_t alignment);

}  // namespace sluice::simt
