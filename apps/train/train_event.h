#pragma once

#include <nlohmann/json_fwd.hpp>

#include "apps/train/step_printer.h"
#include "apps/train/trainer.h"

namespace sluice {

/// What a step was, for the log: what is printed of it, the tokens of its batch, and where its time
/// went.
nlohmann::ordered_json train_event(const StepPrinter::Line& line, const TrainStep& step,
                                   double tokens);

}  // namespace sluice
