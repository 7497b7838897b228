#include "models/lora/targets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "models/decoder/names.h"

namespace sluice {
namespace {

/// The layers of a block without the block's name, with their inputs and outputs.
struct Layer {
  std::string name;
  std::int64_t inputs, outputs;
  bool attention;
};

std::vector<Layer> layers_of(const DecoderConfig& config) {
  const DecoderNames& names = names_of(config.family);
  std::vector<Layer> layers;
  const auto add = [&](std::string_view name, std::int64_t in, std::int64_t out, bool attention) {
    layers.push_back({std::string(name), in, out, attention});
  };
  if (names.qkv_parts[0].empty()) {
    add(names.qkv, config.n_embd, config.qkv_width(), true);
  } else {
    add(names.qkv_parts[0], config.n_embd, config.query_width(), true);
    for (const std::string_view part : {names.qkv_parts[1], names.qkv_parts[2]})
      add(part, config.n_embd, config.key_width(), true);
  }
  add(names.attention_out, config.query_width(), config.n_embd, true);
  if (names.mlp_parts[0].empty())
    add(names.mlp_in, config.n_embd, config.mlp_columns(), false);
  else
    for (const std::string_view part : names.mlp_parts)
      add(part, config.n_embd, config.inner(), false);
  add(names.mlp_out, config.inner(), config.n_embd, false);
  return layers;
}

/// True if the name is the end of some layer's name.
bool adapts_some(const DecoderConfig& config, const std::string& target) {
  const LoraConfig one{.rank = 1, .targets = {target}};
  return !target.empty() && std::ranges::any_of(layers_of(config), [&](const Layer& layer) {
    return one.adapts(layer.name);
  });
}

}  // namespace

std::vector<std::string> lora_targets(const DecoderConfig& config, const std::string& spec) {
  const std::vector<Layer> layers = layers_of(config);
  std::vector<std::string> targets;
  if (spec == "all" || spec == "attention" || spec == "mlp") {
    for (const Layer& layer : layers)
      if (spec == "all" || layer.attention == (spec == "attention")) targets.push_back(layer.name);
    return targets;
  }
  for (std::size_t at = 0; at <= spec.size();) {
    const std::size_t end = std::min(spec.find(',', at), spec.size());
    const std::string target = spec.substr(at, end - at);
    at = end + 1;
    if (!adapts_some(config, target)) {
      std::vector<std::string> known;
      for (const Layer& layer : layers)
        known.push_back(layer.name);
      fail(fmt::format("--lora-targets {}: '{}' is the name of no layer of this {}, which has {}; "
                       "attention, mlp and all mean several",
                       spec, target, names_of(config.family).title, fmt::join(known, ", ")),
           ErrorKind::usage);
    }
    targets.push_back(target);
  }
  return targets;
}

std::vector<std::string> layers_of_blocks(const DecoderConfig& config) {
  std::vector<std::string> names;
  for (std::int64_t block = 0; block < config.n_layer; ++block)
    for (const Layer& layer : layers_of(config))
      names.push_back(fmt::format("{}{}.{}", names_of(config.family).blocks, block, layer.name));
  return names;
}

std::int64_t adapter_parameters(const DecoderConfig& config) {
  if (config.lora.rank == 0) return 0;  // a plan asks thousands of times
  std::int64_t count = 0;
  for (const Layer& layer : layers_of(config))
    if (config.lora.adapts(layer.name)) count += config.lora.rank * (layer.inputs + layer.outputs);
  return config.n_layer * count;
}

void require_lora_fits(const DecoderConfig& config, const std::string& whose) {
  for (const std::string& target : config.lora.targets)
    if (!adapts_some(config, target))
      fail(fmt::format("{}: it changes {}, which no block of this {} has; it is of another model",
                       whose, target, names_of(config.family).title),
           ErrorKind::usage);
  for (const Layer& layer : layers_of(config))
    if (const std::int64_t most = std::min(layer.inputs, layer.outputs);
        config.lora.adapts(layer.name) && config.lora.rank > most)
      fail(
          fmt::format("{}: the rank is {}, and {} is a matrix of {} x {}, whose rank is {} at most",
                      whose, config.lora.rank, layer.name, layer.outputs, layer.inputs, most),
          ErrorKind::usage);
}

}  // namespace sluice
