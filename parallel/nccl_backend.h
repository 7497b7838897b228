#pragma once

#include <memory>
#include <string>

#include "engine/device_context.h"
#include "parallel/backend.h"
#include "parallel/transport.h"

namespace sluice {

/// "2.28.9" of the NCCL that this process has loaded now or before; empty where it can load none,
/// and `why` says why.
std::string nccl_version(std::string* why = nullptr);

/// Collectives between the memories of GPUs, of which every rank of the transport has one of its
/// own. All ranks call it together, while nothing else goes on there; it waits until they have,
/// `timeout` seconds at most. Sums are NCCL's: their bits depend on the number of ranks and on how
/// they are connected. A GPU does one operation after another, so messages that wait for each other
/// belong into one p2p.
///
/// Calls whose stream is not a GPU's are on host memory and go by the transport's messages.
std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<Transport> transport,
                                           const DevicePtr& device, double timeout);

}  // namespace sluice
