#pragma once

#include <cstddef>
#include <memory>

#include "engine/device_context.h"
#include "parallel/comm/backend/backend.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

/// Makes a backend for GPU memory that goes through the host: it copies a rank's input to pinned
/// memory, runs the operation there with the host backend, and copies the result back. It serves
/// ranks that share a GPU and machines without NCCL. Results have the host backend's bits.
///
/// Copies run on their own streams and do not block the host; join() makes the call's stream wait.
/// Four buffers of `largest_bytes` are pinned once. (If the system refuses, they are ordinary
/// memory, and copies to the host do block.) An operation larger than one buffer is an Error. An
/// operation waits until a buffer is free. So at most four operations run at once, and ranks that
/// start more than four sends before the first receive wait for each other without end.
///
/// A call whose stream is not a GPU's is on host memory and goes to the host backend unchanged.
std::unique_ptr<Backend> make_staged_backend(std::shared_ptr<Transport> transport,
                                             const DevicePtr& device, std::size_t largest_bytes);

}  // namespace sluice
