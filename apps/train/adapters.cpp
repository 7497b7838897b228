#include "apps/train/adapters.h"

#include <fmt/format.h>

#include "apps/train/setup.h"
#include "models/decoder/weights.h"
#include "models/lora/adapter_file.h"
#include "models/lora/targets.h"

namespace sluice {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  fail(text, ErrorKind::usage);
}

/// Refuses options for adapters where none are asked for, or that an existing adapter decides.
void require_request(const TrainConfig& o) {
  const char* const given = o.adapter.alpha              ? "--lora-alpha"
                            : !o.adapter.targets.empty() ? "--lora-targets"
                            : o.adapter.dropout          ? "--lora-dropout"
                            : o.adapter.int8_base        ? "--int8-base"
                                                         : nullptr;
  if (o.adapter.folder.empty() && !o.adapter.rank && given != nullptr)
    refuse(fmt::format("{} is for adapters: give --lora-rank too", given));
  if (o.adapter.folder.empty()) return;
  const char* const decided = o.adapter.rank               ? "--lora-rank"
                              : o.adapter.alpha            ? "--lora-alpha"
                              : !o.adapter.targets.empty() ? "--lora-targets"
                                                           : nullptr;
  if (decided != nullptr)
    refuse(fmt::format("{}: --adapter {} decides it; leave it out", decided, o.adapter.folder));
}

/// Returns the option that asks for adapters.
std::string asked_by(const TrainConfig& o) {
  return o.adapter.folder.empty() ? fmt::format("--lora-rank {}", o.adapter.rank.value_or(0))
                                  : fmt::format("--adapter {}", o.adapter.folder);
}

/// Refuses what cannot be combined with adapters.
void require_alone(const TrainConfig& o) {
  const std::string flag = asked_by(o);
  if (o.parallel.sequence_parallel)
    refuse(fmt::format("{} cannot go with --sequence-parallel: adapters read all tokens", flag));
}

}  // namespace

void resolve_adapters(const TrainConfig& o, DecoderConfig& config) {
  require_request(o);
  if (!o.adapter.rank && o.adapter.folder.empty()) return;
  require_alone(o);
  if (!o.adapter.folder.empty()) {
    config.lora = read_adapter(o.adapter.folder, config).lora;
    config.lora.dropout = o.adapter.dropout.value_or(config.lora.dropout);
  } else {
    const auto rank = static_cast<double>(*o.adapter.rank);
    config.lora = {
        .rank = *o.adapter.rank,
        .alpha = o.adapter.alpha.value_or(2 * rank),
        .dropout = o.adapter.dropout.value_or(0),
        .targets = lora_targets(config, o.adapter.targets.empty() ? "all" : o.adapter.targets)};
  }
  config.lora.int8_base = o.adapter.int8_base;
  require_lora_fits(config, asked_by(o));
  if (config.lora.dropout > 0 && o.parallel.tp > 1)
    refuse(
        fmt::format("--tp {}: ranks would drop other columns than one process, and the adapters' "
                    "dropout is {}; give --lora-dropout 0",
                    o.parallel.tp, config.lora.dropout));
  if (config.lora.dropout > 0 && o.machine.cuda_graph)
    refuse(
        fmt::format("--cuda-graph would draw the same numbers in every step, and the adapters' "
                    "dropout is {}; leave it out",
                    config.lora.dropout));
}

void check_model_weights(const RunSetup& setup) {
  if (setup.model_folder.empty()) {
    if (setup.config.lora.rank > 0)
      refuse(
          "--lora-rank: adapters change a model that was trained, and this one has random "
          "weights; give --model FOLDER");
    return;
  }
  check_weights(setup.model_folder, setup.config);
}

std::unique_ptr<FrozenWeights> make_frozen(Decoder& model, const std::vector<DecoderPart>& parts,
                                           const DevicePtr& device, DType dtype) {
  if (model.config().lora.rank == 0) return nullptr;
  return std::make_unique<FrozenWeights>(model, parts, device, dtype);
}

void load_start(const TrainConfig& o, const RunSetup& setup, FrozenWeights* frozen,
                ParameterSpace& space) {
  if (frozen == nullptr) return load_weights(setup.model_folder, setup.config, space);
  frozen->load(setup.model_folder, setup.config);
  if (o.adapter.folder.empty())
    space.initialize(o.seed);
  else
    load_adapter(o.adapter.folder, space);
}

}  // namespace sluice
