#pragma once

#include <functional>
#include <memory>

#include "parallel/comm/transport/transport.h"

namespace sluice {

/// Runs `body` once for each rank, each on its own thread, with a transport between these threads:
/// for tests and sanitizers. A send is done only when its receiver has copied the bytes, never
/// before, so that code that relies on buffering is exposed. If one throws, the messages of the
/// others fail; the first exception is thrown again here when all have ended.
void run_on_threads(int ranks, const std::function<void(std::unique_ptr<Transport>)>& body);

}  // namespace sluice
