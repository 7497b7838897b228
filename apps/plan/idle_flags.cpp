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

/// The formats of --data and --val-data.
struct Kinds {
  bool known = true;            ///< false: they are not on this machine
  bool text = false;            ///< some of it is text
  bool json = false;            ///< some of it is JSON Lines
  bool drawn = false;           ///< documents for validation are drawn
  std::string name = "--data";  ///< for messages
};

/// `read`: the data was read, so it is here.
Kinds kinds_of(const TrainOptions& o, bool read) {
  Kinds kinds;
  if (o.data.empty()) return {.text = true, .name = "the text that ships with the program"};
  const auto add = [&](const std::string& flag, const std::vector<std::string>& names) {
    if (names.empty() || !kinds.known) return;
    const auto here = [](const std::string& name) { return fs::exists(name); };
    kinds.known = read || std::ranges::all_of(names, here);
    if (!kinds.known) return;
    const DataFiles files = find_data(flag, names);
    if (kinds.name == "--data") kinds.name = files.name;
    const bool json = any_json_lines(files, o.text.format);
    kinds.text |= !files.texts.empty();
    kinds.json |= json;
    kinds.drawn |=
        flag == "--data" && o.val_data.empty() && (json || files.texts.size() >= few_documents);
  };
  add("--data", o.data);
  add("--val-data", o.val_data);
  return kinds;
}

/// The rules of flags that would change nothing.
std::vector<NoEffect> rules_of(const TrainOptions& o, const RunSetup& setup, const Kinds& data) {
  const DecoderConfig& config = setup.config;
  const bool shaped = !o.model.empty();
  const auto shape = [&](std::int64_t has) {
    return fmt::format("is for a shape of your own, and --model {} decides it ({})", o.model, has);
  };
  const bool resolved = setup.data.train != nullptr;
  const bool mute = resolved && setup.tokenizer == nullptr;
  const bool silent = o.sample_tokens == 0;
  const OptimizerKind rule = o.optimizer;
  const std::string optimizer =
      fmt::format("is AdamW's, and the optimizer is {}", name_in(optimizers, rule));
  return {
      // Beside a model.
      {shaped && o.n_layer != config.n_layer, "--n-layer", shape(config.n_layer), true},
      {shaped && o.n_head != config.n_head, "--n-head", shape(config.n_head), true},
      {shaped && o.n_embd != config.n_embd, "--n-embd", shape(config.n_embd), true},
      // Beside data.
      {data.known && !data.text && o.prompt.empty(), "--special",
       fmt::format("is for text, and {} holds tokens", data.name)},
      {!o.val_data.empty(), "--split-seed",
       "draws documents for validation, and --val-data gives them"},
      {mute, "--tokenizer", fmt::format("is for text, and {} holds tokens", data.name)},
      {mute && !silent, "--prompt --sample-every --sample-tokens",
       fmt::format("is for samples, and {} has no tokenizer; give --tokenizer-dir", data.name)},
      {silent, "--prompt --sample-every", "is for samples, and --sample-tokens is 0"},
      // The user turned validation off with --val-every 0.
      {resolved && !setup.data.val && o.val_every > 0, "--val-every --val-steps --keep-best",
       fmt::format("is for validation, for which {} has no data; give --val-data", data.name)},
      // Beside other flags.
      {rule == OptimizerKind::sgd, "--beta2 --eps", optimizer},
      {rule == OptimizerKind::adafactor, "--beta1 --beta2 --eps", optimizer},
      {o.lr_schedule == ScheduleKind::constant && o.min_lr.value_or(0) > 0, "--min-lr",
       "is where the rate ends, and --lr-schedule constant keeps it"},
      {o.no_save && !o.save_every, "--async-save", "is for checkpoints, and --no-save writes none"},
      {setup.device == DeviceKind::cpu && o.state_home.empty(), "--staging-chunks",
       "is for state on its way to a GPU or, with --state-home, to a disk"},
      {o.skip_loss_spike == 0 && o.skip_grad_spike == 0, "--spike-window",
       "is for --skip-loss-spike and --skip-grad-spike"},
  };
}

/// Refuses a rate that would rise to its end.
void require_schedule(const TrainOptions& o, const RateSchedule& schedule) {
  if (o.min_lr && schedule.final_rate > schedule.rate)
    fail(fmt::format("--min-lr {} is above the rate of {:.6g} (--lr), from which the rate falls "
                     "to it",
                     schedule.final_rate, schedule.rate),
         ErrorKind::usage);
}

}  // namespace

void require_effects(const TrainOptions& o, const RunSetup& setup) {
  const Kinds data = kinds_of(o, setup.data.train != nullptr);
  const bool few = !data.drawn && o.val_data.empty();
  if (data.known) refuse_without_effect(o.given, text_rules(data.text, data.json, data.name, few));
  refuse_without_effect(o.given, rules_of(o, setup, data));
  require_schedule(o, setup.schedule);
}

}  // namespace sluice
