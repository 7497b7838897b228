#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/device_context.h"
#include "parallel/comm/backend/backend.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

// These functions are defined only in a build with NCCL.

/// Returns the version, such as "2.28.9", of the NCCL that this process has loaded, loading it if
/// need be. Throws Error if it can load none.
std::string loaded_nccl();

/// A communicator of NCCL, which takes GPU memory of its own. Backends of the same ranks may share
/// it. The last owner ends it.
class NcclConnection;

/// Connects the GPUs of ranks. Every rank of the transport must have a GPU of its own. All ranks
/// call this function together, while no other operation uses the transport; it waits for all of
/// them, at most `timeout` seconds. `from_first` broadcasts rank 0's text to all ranks: NCCL's
/// unique id.
std::shared_ptr<NcclConnection> connect_nccl(
    const Transport& transport, const DevicePtr& device, double timeout,
    const std::function<std::string(const std::string&)>& from_first);

/// Makes a backend for GPU memory. The bits of NCCL's sums depend on the number of ranks and on how
/// they are connected. All communicators of a GPU do one operation after another, in the order in
/// which the program starts them, so messages that wait for each other belong in one p2p.
///
/// A call whose stream is not a GPU's is on host memory and uses the transport's messages.
std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<Transport> transport,
                                           std::shared_ptr<NcclConnection> connection);

}  // namespace sluice
