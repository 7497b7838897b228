#pragma once

#include <cstddef>
#include <memory>

#include "engine/device_context.h"
#include "parallel/comm/backend/backend.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

/// Collectives on GPU memory by way of the host: the rank's input is copied to pinned memory, the
/// host backend does the operation there, and the result is copied back. For ranks that share a
/// GPU, and for machines without NCCL. The bits are those of the host backend.
///
/// Copies run on streams of their own beside the compute stream, and nothing here makes the host
/// wait: the stream of a call waits in join(). Memory is pinned once, as four buffers of
/// `largest_bytes` (ordinary memory if the system refuses; then copies to the host do wait). An
/// operation that does not fit into one buffer is an Error. One that finds no free buffer starts,
/// in its turn, when a buffer becomes free. So if ranks start p2p in different orders, for example
/// all sends before the first receive, at most four that wait for each other may be under way.
///
/// Calls whose stream is not a GPU's are on host memory and go to the host backend unchanged.
std::unique_ptr<Backend> make_staged_backend(std::shared_ptr<Transport> transport,
                                             const DevicePtr& device, std::size_t largest_bytes);

}  // namespace sluice
