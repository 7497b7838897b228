#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

/// Bytes on the device and on its host.
struct Need {
  std::size_t device = 0, host = 0;

  Need operator+(const Need& other) const { return {device + other.device, host + other.host}; }
};

/// What is held between updates with some blocks' state on the device, the lowest; linear in their
/// number between none and all but one, so three plans tell all. Two more tell what the CPU's desk
/// takes of the host, what the ring takes of the device as long as any state visits it, and what
/// speculative updates take of the device, and each block of them of the host.
struct StateNeed {
  Need none, one, all;
  std::size_t desk = 0, ring = 0, guess = 0, second = 0;

  Need with(std::int64_t resident, std::int64_t by_cpu, std::int64_t speculative,
            std::int64_t layers) const {
    if (resident >= layers) return all;
    const auto r = static_cast<std::size_t>(resident);
    Need need{none.device + r * (one.device - none.device), none.host - r * (none.host - one.host)};
    if (by_cpu > 0) need.host += desk;
    if (speculative > 0) need.device += guess;
    need.host += static_cast<std::size_t>(speculative) * second;
    if (by_cpu == layers - resident) need.device -= ring;
    return need;
  }
};

}  // namespace sluice
