#pragma once

#include <string>
#include <string_view>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// A picture (SVG) of who computes when: a row a rank, forwards and backwards in two hues, darker
/// the later the stage among those of its rank, numbered by micro-batch. The heading says how much
/// is bubble.
std::string to_svg(const Schedule& schedule, const Simulation& simulation, std::string_view title);

}  // namespace sluice
