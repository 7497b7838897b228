#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/device_context.h"
#include "parallel/comm/backend/backend.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

// Defined in a build with NCCL alone.

/// Returns the version, such as "2.28.9", of the NCCL that this process has loaded, loading it if
/// need be. Throws Error if it can load none.
std::string loaded_nccl();

/// Collectives between the memories of GPUs. Every rank of the transport has a GPU of its own. All
/// ranks call this function together while no other operation runs there; it waits until they have,
/// `timeout` seconds at most. Sums are NCCL's: their bits depend on the number of ranks and on how
/// they are connected. A GPU does one operation after another, so messages that wait for each other
/// belong in one p2p.
///
/// Calls whose stream is not a GPU's are on host memory and use the transport's messages.
/// `from_first` gives all ranks the text of the first one, by which NCCL connects them.
std::unique_ptr<Backend> make_nccl_backend(
    std::shared_ptr<Transport> transport, const DevicePtr& device, double timeout,
    const std::function<std::string(const std::string&)>& from_first);

}  // namespace sluice
