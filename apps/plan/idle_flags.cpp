#include "apps/plan/idle_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

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

/// The rules of flags that would change nothing.
std::vector<NoEffect> rules_of(const TrainConfig& o, const RunSetup& setup) {
  const std::string data = name_of_data(o);
  const DecoderConfig& config = setup.config;
  const bool shaped = !o.model.name.empty();
  const auto shape = [&](std::int64_t has) {
    return fmt::format("is for a shape of your own, and --model {} decides it ({})", o.model.name,
                       has);
  };
  const bool resolved = setup.data.train != nullptr;
  const bool mute = resolved && setup.tokenizer == nullptr;
  const bool silent = o.evaluation.sample_tokens == 0;
  const OptimizerKind rule = o.optimizer.kind;
  const std::string optimizer =
      fmt::format("is AdamW's, and the optimizer is {}", name_in(optimizers, rule));
  return {
      // Beside a model.
      {shaped && o.model.n_layer != config.n_layer, "--n-layer", shape(config.n_layer), true},
      {shaped && o.model.n_head != config.n_head, "--n-head", shape(config.n_head), true},
      {shaped && o.model.n_embd != config.n_embd, "--n-embd", shape(config.n_embd), true},
      // Beside data.
      {mute, "--tokenizer", fmt::format("is for text, and {} holds tokens", data)},
      {mute && !silent, "--prompt --sample-every --sample-tokens",
       fmt::format("is for samples, and {} has no tokenizer; give --tokenizer-dir", data)},
      {silent, "--prompt --sample-every", "is for samples, and --sample-tokens is 0"},
      // The user turned validation off with --val-every 0.
      {resolved && !setup.data.val && o.evaluation.val_every > 0,
       "--val-every --val-steps --keep-best",
       fmt::format("is for validation, for which {} has no data; give --val-data", data)},
      // Beside other flags.
      {rule != OptimizerKind::muon, "--muon-lr --muon-momentum",
       fmt::format("is for --optimizer muon, not {}", name_in(optimizers, rule)), true},
      {rule == OptimizerKind::sgd, "--beta2 --eps", optimizer},
      {rule == OptimizerKind::adafactor, "--beta1 --beta2 --eps", optimizer},
      {o.optimizer.schedule == ScheduleKind::constant && o.optimizer.min_lr.value_or(0) > 0,
       "--min-lr", "is where the rate ends, and --lr-schedule constant keeps it"},
      {setup.device == DeviceKind::cpu && o.memory.state_home.empty() && o.memory.staging_chunks,
       "--stream-chunks",
       "has a number of chunks for state on its way to a GPU or, with --state-home, to a disk"},
  };
}

/// Refuses a rate that would rise to its end.
void require_schedule(const TrainConfig& o, const RateSchedule& schedule) {
  if (o.optimizer.min_lr && schedule.final_rate > schedule.rate)
    fail(fmt::format("--min-lr {} is above the rate of {:.6g} (--lr), from which the rate falls "
                     "to it",
                     schedule.final_rate, schedule.rate),
         ErrorKind::usage);
}

}  // namespace

void require_effects(const TrainConfig& o, const RunSetup& setup) {
  refuse_without_effect(o.given, rules_of(o, setup));
  require_schedule(o, setup.schedule);
}

}  // namespace sluice
