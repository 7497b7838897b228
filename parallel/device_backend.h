#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device_context.h"
#include "parallel/backend.h"
#include "parallel/transport.h"

namespace sluice {

/// What a rank says of its GPU before a backend is chosen.
struct RankDevice {
  std::string host;
  std::string uuid;       ///< as in DeviceInfo
  std::string nccl{};     ///< the version that it has loaded, or none...
  std::string without{};  ///< ...for this reason
};

struct BackendChoice {
  bool nccl = false;
  std::string reason;  ///< "staged: ranks 0 and 1 share the GPU GPU-3f2a... of a, which..."
};

/// `wish`: auto, nccl or staged. Auto is nccl where every rank has a GPU of its own and all have
/// loaded the same version of NCCL. Throws Error (usage) where nccl is wished for and impossible.
BackendChoice choose_backend(const std::vector<RankDevice>& ranks, std::string_view wish);

struct DeviceBackend {
  std::unique_ptr<Backend> backend;
  std::string reason;  ///< one line for the user
};

/// Asks all ranks of the transport, which all call it with the same wish while nothing else goes on
/// there. `largest_bytes`: see make_staged_backend; `timeout`: seconds until all must have joined.
DeviceBackend make_device_backend(const std::shared_ptr<Transport>& transport,
                                  const DevicePtr& device, std::string_view wish,
                                  std::size_t largest_bytes, double timeout);

}  // namespace sluice
