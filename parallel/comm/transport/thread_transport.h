#pragma once

#include <functional>
#include <memory>

#include "parallel/comm/transport/transport.h"

namespace sluice {

/// Runs `body` once per rank, each on its own thread, with a transport between the threads: for
/// tests and sanitizers. A send is done only when its receiver has copied the bytes, which exposes
/// code that relies on buffering. If one thread throws, the messages of the others fail, and the
/// first exception is rethrown here when all threads have ended.
void run_on_threads(int ranks, const std::function<void(std::unique_ptr<Transport>)>& body);

}  // namespace sluice
