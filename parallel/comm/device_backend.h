#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device_context.h"
#include "parallel/comm/backend/backend.h"
#include "parallel/comm/backend/nccl_backend.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

/// A rank's description of its GPU, used to choose a backend.
struct RankDevice {
  std::string host;
  std::string uuid;          ///< as in DeviceInfo
  std::string host_id{};     ///< NCCL_HOSTID, by which NCCL tells computers apart; empty if not set
  std::string nccl{};        ///< version of the NCCL that it has loaded; empty if none
  std::string nccl_error{};  ///< why it has loaded none
};

struct BackendChoice {
  bool nccl = false;
  std::string reason;  ///< for example "staged: ranks 0 and 1 share the GPU ..."
};

/// Loads NCCL if that has not been done and returns its version. Returns "" if it cannot be loaded;
/// `why` then receives the reason.
std::string nccl_version(std::string& why);

/// How GPUs exchange data: directly, or through host memory.
enum class GpuExchange : std::uint8_t { nccl, staged };

/// Chooses a backend. If `asked` is none (auto), chooses nccl if every rank has a GPU of its own
/// and all have loaded the same version of NCCL. Throws Error (usage) if nccl is asked for and
/// impossible.
BackendChoice choose_backend(const std::vector<RankDevice>& ranks,
                             std::optional<GpuExchange> asked);

/// How the GPUs of a group exchange data.
struct DeviceLink {
  std::shared_ptr<NcclConnection> nccl;  ///< null: through host memory
  std::string reason;                    ///< one line for the user
};

/// Chooses how GPUs exchange data and connects them. NCCL must pass a self-test, which also makes
/// it take its GPU memory for each kind of operation that it does; if NCCL was asked for and fails,
/// throws Error. All ranks call it, with the same `asked`, while nothing else uses the transport.
/// `device` needs no reserved memory. `timeout`: seconds until all ranks must have joined.
DeviceLink connect_devices(const std::shared_ptr<Transport>& transport, const DevicePtr& device,
                           std::optional<GpuExchange> asked, double timeout);

/// Makes a backend for ranks that are linked. `largest_bytes`: see make_staged_backend.
std::unique_ptr<Backend> make_device_backend(const DeviceLink& link,
                                             const std::shared_ptr<Transport>& transport,
                                             const DevicePtr& device, std::size_t largest_bytes);

}  // namespace sluice
