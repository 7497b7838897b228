#pragma once

#include <cstdint>
#include <vector>

#include "apps/train/memory_choice.h"
#include "apps/train/setup.h"

namespace sluice {

// What a planner tries: what flags have fixed, or everything that there is.

/// Sequences, the most first.
std::vector<std::int64_t> micro_batches(const TrainOptions& options, const RunSetup& setup,
                                        bool gpu);

/// All layers alike, and every split between neighbouring modes: the first layers do more.
std::vector<std::vector<Recompute>> recompute_lists(const TrainOptions& options,
                                                    std::int64_t layers, bool inputs_on_host);

/// The usual one first; no others where nothing streams.
std::vector<Staging> stagings(const TrainOptions& options, bool streams);

}  // namespace sluice
