#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "parallel/comm/communicator.h"

namespace sluice {

/// Brings an array to rank 0 of which each rank has some bytes and zeros elsewhere. No two ranks
/// have the same byte. A rank sends a byte for each chunk of 16 KiB, then only the chunks that are
/// not all zeros. All ranks call it with arrays of one size; it waits. The arrays of the other
/// ranks do not change.
void collect(Communicator& ranks, std::span<std::byte> data, std::string_view label);

}  // namespace sluice
