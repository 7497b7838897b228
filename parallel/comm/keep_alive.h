#pragma once

#include <functional>
#include <string_view>

#include "parallel/comm/communicator.h"

namespace sluice {

/// Runs `work`, which may take longer than Options::timeout, for example because it waits for a
/// disk, and which uses no communicator. Meanwhile a thread tells the other ranks that this rank is
/// alive. All ranks call it together, each with its own work or with none, and it returns when the
/// work of all ranks is done. `ranks` is on host memory.
///
/// If `work` throws, so does this function, at most a quarter of the timeout later, and the other
/// ranks wait as for a rank that failed. If a peer fails, `work` ends first. The monitor hears of
/// work for which others wait longer than the timeout (Monitor::slow). Before the work begins, all
/// operations under way are over (Communicator::finish()), so ranks that differ write nothing.
void keep_alive(Communicator& ranks, std::string_view label,
                const std::function<void()>& work = {});

}  // namespace sluice
