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

/// Returns the option that asks for adapters.
std::string asked_by(const TrainConfig& o) {
  return o.adapter.folder.empty() ? fmt::format("--lora-rank {}", o.adapter.rank.value_or(0))
                                  : fmt::format("--adapter {}", o.adapter.folder);
}

}  // namespace

void resolve_adapters(const TrainConfig& o, DecoderConfig& config) {
  if (!o.adapter.rank && o.adapter.folder.empty()) return;
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
