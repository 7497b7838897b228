#include "apps/report/train_event.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sluice {

nlohmann::ordered_json train_event(const StepPrinter::Line& line, const TrainStep& step,
                                   double tokens) {
  nlohmann::ordered_json fields{{"step", line.step},
                                {"loss", line.loss},
                                {"grad_norm", line.norm},
                                {"lr", line.rate},
                                {"tokens", tokens},
                                {"step_ms", line.milliseconds},
                                {"tokens_per_second", line.tokens_per_second},
                                {"mfu", line.mfu},
                                {"memory_bytes", line.memory},
                                {"loss_scale", step.loss_scale},
                                {"applied", step.applied}};
  fields.update(fields_of(step.report));
  return fields;
}

std::string text_of(const Validation& v) {
  return fmt::format("val          step {}: loss {:.4f} ({:.0f} ms)", v.step, v.loss,
                     v.milliseconds);
}

nlohmann::ordered_json val_event(const Validation& v, const EvaluationBatches& batches) {
  return {{"step", v.step},
          {"loss", v.loss},
          {"sequences", batches.sequences()},
          {"tokens", batches.tokens()},
          {"ms", v.milliseconds}};
}

}  // namespace sluice
