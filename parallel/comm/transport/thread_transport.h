#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "parallel/comm/transport/transport.h"

namespace sluice {

/// Transports between threads of this process, for tests and sanitizers: entry r belongs to the
/// thread of rank r. A send is done only when its receiver has copied the bytes, never before, so
/// that code that relies on buffering is exposed.
std::vector<std::unique_ptr<Transport>> make_thread_transports(int ranks);

/// Runs `body` once for each rank, each on its own thread. If one throws, the messages of the
/// others fail; the first exception is thrown again here when all have ended.
void run_on_threads(int ranks, const std::function<void(std::unique_ptr<Transport>)>& body);

}  // namespace sluice
