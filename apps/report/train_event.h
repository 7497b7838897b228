#pragma once

#include <nlohmann/json_fwd.hpp>

#include "apps/report/step_printer.h"
#include "apps/train/trainer.h"

namespace sluice {

/// Describes a step for the log: the printed figures, the tokens of its batch, and how its time was
/// spent.
nlohmann::ordered_json train_event(const StepPrinter::Line& line, const TrainStep& step,
                                   double tokens);

}  // namespace sluice
