#pragma once

#include <string>
#include <string_view>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// Draws a picture (SVG) of a schedule over time: a row per rank, with forwards and backwards in
/// two hues, darker for later stages of the same rank, labelled by micro-batch. The heading gives
/// the fraction that is bubble.
std::string to_svg(const Schedule& schedule, const Simulation& simulation, std::string_view title);

}  // namespace sluice
