#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/report/step_printer.h"
#include "apps/train/evaluation.h"
#include "apps/train/trainer.h"

namespace sluice {

/// Describes a step for the log: the printed figures, the tokens of its batch, and how its time was
/// spent.
nlohmann::ordered_json train_event(const StepPrinter::Line& line, const TrainStep& step,
                                   double tokens);

/// The losses of a model after some steps.
struct Validation {
  std::int64_t step = 0;
  double loss = 0;
  double milliseconds = 0;
};
/// Describes a validation in a line, and for the log. `batches`: of the validation data.
std::string text_of(const Validation& validation);
nlohmann::ordered_json val_event(const Validation& validation, const EvaluationBatches& batches);

}  // namespace sluice
