#pragma once

#include <cstdint>
#include <span>

#include "optim/space/space_layout.h"

namespace sluice {

/// Writes the values with which a new model begins: elements [first, first + out.size()) of this
/// rank's part of a parameter. Each depends only on (seed, name, element of the whole parameter).
void initial_values(const SpaceLayout::Slot& slot, std::uint64_t seed, std::int64_t first,
                    std::span<float> out);

}  // namespace sluice
