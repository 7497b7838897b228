#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "parallel/comm/communicator.h"

namespace sluice {

/// Brings an array to rank 0 of which each rank has some bytes and zeros elsewhere. No two ranks
/// have the same byte. A rank sends only the chunks of 16 KiB that are not all zeros, so that the
/// ranks together send little more than the array. All ranks call it with arrays of one size; it
/// waits. The arrays of the other ranks do not change.
void collect(Communicator& ranks, std::span<std::byte> data, std::string_view label);

}  // namespace sluice
