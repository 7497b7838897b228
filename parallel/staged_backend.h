#pragma once

#include <cstddef>
#include <memory>

#include "engine/device_context.h"
#include "parallel/backend.h"
#include "parallel/transport.h"

namespace sluice {

/// Collectives on GPU memory by way of the host: what a rank gives is copied to pinned memory, the
/// host backend does the operation there, and what it gets is copied back. For ranks that share a
/// GPU, and where NCCL is not. The bits are those of the host backend.
///
/// Copies go on streams of their own beside the computing, and nothing here makes the host wait:
/// the stream of a call waits in join(). Memory is pinned once, as four buffers of `largest_bytes`
/// (ordinary memory where the system refuses; then copies to the host do wait). An operation that
/// does not fit into one is an Error; an operation that finds none free starts, in its turn, when
/// one is. So ranks that start p2p in orders of their own, all sends before the first receive say,
/// may have only four under way that wait for each other.
///
/// Calls whose stream is not a GPU's are on host memory and go to the host backend as they are.
std::unique_ptr<Backend> make_staged_backend(std::shared_ptr<Transport> transport,
                                             const DevicePtr& device, std::size_t largest_bytes);

}  // namespace sluice
