#pragma once

#include <string>

#include "engine/device_context.h"
#include "parallel/comm/backend/backend.h"

namespace sluice {

/// Does each kind of operation once on a few numbers in the memory of `device`. All ranks call it
/// together. Returns what went wrong, such as "all_reduce gave wrong numbers", or "" if nothing
/// did. `timeout`: seconds for one operation.
std::string self_test(Backend& backend, int rank, int ranks, const DevicePtr& device,
                      double timeout);

}  // namespace sluice
