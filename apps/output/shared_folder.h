#pragma once

#include <filesystem>
#include <string>

#include "parallel/comm/communicator.h"

namespace sluice {

/// Returns `path` if it is a folder, else the nearest parent that exists. A relative path remains
/// one, since each rank follows it from where it was started.
std::filesystem::path nearest_folder(std::filesystem::path path);

/// Throws Error (usage) on all ranks if one does not see what rank 0 writes to `path`, a folder or
/// file that need not exist: on a computer's own disk another one has that name. Names the rank,
/// its host and the flag `flag`. All ranks call it with rank 0's path. It leaves no file behind.
void require_shared_folder(Communicator& ranks, const std::string& flag,
                           const std::filesystem::path& path);

}  // namespace sluice
