#include "apps/plan/run_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/data/data_files.h"
#include "apps/data/document_split.h"
#include "apps/data/text_source.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Returns the training data's name, for messages.
std::string name_of_data(const TrainConfig& o) {
  if (o.data.train.empty()) return "the text that ships with the program";
  const auto here = [](const std::string& name) { return fs::exists(name); };
  return std::ranges::all_of(o.data.train, here) ? find_data("--data", o.data.train).name
                                                 : "--data";
}

/// Refuses a learning rate that would rise to its end.
void require_schedule(const TrainConfig& o, const RateSchedule& schedule) {
  if (o.optimizer.min_lr && schedule.final_rate > schedule.rate)
    fail(fmt::format("--min-lr {} is above the rate of {:.6g} (--lr), from which the rate falls "
                     "to it",
                     schedule.final_rate, schedule.rate),
         ErrorKind::usage);
}

}  // namespace

RunFacts run_facts(const TrainConfig& o, const RunSetup& setup) {
  const TokenSource* const train = setup.data.train.get();
  return {.o = o,
          .model = &setup.config,
          .dropout = setup.trainer.dropout,
          .gpu = setup.device == DeviceKind::cuda,
          .has_data = train != nullptr,
          .pairs = train != nullptr && train->in_rows(),
          .can_sample = setup.tokenizer != nullptr,
          .can_validate = setup.data.val != nullptr,
          .working = setup.precision.dtype,
          .placement = parse_placement(o.memory.placement, setup.config.n_layer)};
}

void require_run(const TrainConfig& o, const RunSetup& setup) {
  RunFacts facts = run_facts(o, setup);
  facts.data_name = name_of_data(o);
  require_rules(facts, Known::run);
  require_schedule(o, setup.schedule);
}

}  // namespace sluice
