#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "parallel/transport.h"

namespace sluice {

/// The ranks of one group as threads of this process, for tests and sanitizers: entry r is for
/// thread r. A send is done when its receiver has copied the bytes, never before, so that code
/// that counts on buffering comes to light.
std::vector<std::unique_ptr<Transport>> make_thread_transports(int ranks);

/// Runs `body` as every rank, each on a thread of its own. When one throws, the messages of the
/// others fail; the first exception is thrown here when all have ended.
void run_on_threads(int ranks, const std::function<void(std::unique_ptr<Transport>)>& body);

}  // namespace sluice
