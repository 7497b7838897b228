#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice {

/// Bytes on the device, on its host, and in a file.
struct MemoryBytes {
  std::size_t device = 0, host = 0, file = 0;

  MemoryBytes operator+(const MemoryBytes& other) const {
    return {device + other.device, host + other.host, file + other.file};
  }
};

/// Bytes held between updates, as a function of how many of the lowest blocks keep their state on
/// the device. The function is linear from none to all but one of the blocks, so three plans (none,
/// one, all) determine it. One more plan gives `staging` (host bytes, if the CPU updates blocks)
/// and `ring` (device bytes, while any state is streamed).
struct StateMemory {
  MemoryBytes none, one, all;
  std::size_t gradients = 0;  ///< device bytes in each of these, if ranks shard gradients
  std::size_t staging = 0, ring = 0;

  MemoryBytes bytes_for(std::int64_t resident, std::int64_t by_cpu, std::int64_t layers) const {
    if (resident >= layers) return all;
    const auto r = static_cast<std::size_t>(resident);
    // A rank of several may keep less of the other blocks than of the lowest.
    const auto without = [r](std::size_t all_away, std::size_t one_here) {
      return all_away - std::min(all_away, r * (all_away - std::min(all_away, one_here)));
    };
    MemoryBytes need{none.device + r * (one.device - none.device), without(none.host, one.host),
                     without(none.file, one.file)};
    if (by_cpu > 0) need.host += staging;
    if (by_cpu == layers - resident) need.device -= ring;
    return need;
  }
};

}  // namespace sluice
