#include "models/lora/adapter_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "engine/io/json_document.h"
#include "engine/io/safetensors.h"
#include "kernels/base/error.h"
#include "models/decoder/names.h"
#include "models/decoder/weights.h"
#include "models/lora/targets.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view a_end = ".lora_A.weight", b_end = ".lora_B.weight";
constexpr std::string_view peft_prefix = "base_model.model.";

/// Returns "attn.c_attn" from "h.0.attn.c_attn"; "": the name has no block's number.
std::string without_block(std::string_view layer) {
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  while (layer.find('.') != std::string_view::npos) {
    const std::string_view first = layer.substr(0, layer.find('.'));
    layer.remove_prefix(first.size() + 1);
    if (is_number(first)) return std::string(layer);
  }
  return "";
}

/// Refuses a tensor that is no matrix A or B of a layer in a block, and says what it is.
void require_layer_of_block(const fs::path& file, std::string_view tensor) {
  const auto refuse = [&](std::string_view what) {
    refuse_adapter(file, fmt::format("tensor {} is {}; only adapters of the layers in blocks are "
                                     "supported, so take the model that PEFT's merge_and_unload "
                                     "makes",
                                     quote(tensor), what));
  };
  if (tensor.find(".lora_embedding_") != std::string_view::npos) refuse("an embedding's adapter");
  if (tensor.ends_with(a_end) || tensor.ends_with(b_end)) {
    if (without_block(tensor).empty()) refuse("an adapter outside the blocks, such as the head's");
    return;
  }
  if (tensor.find("lora_magnitude_vector") != std::string_view::npos) refuse("a part of DoRA");
  if (tensor.find(".lora_") != std::string_view::npos) refuse("no matrix A or B of LoRA");
  refuse(tensor.ends_with(".bias") ? "a trained bias" : "a module's own weight, saved whole");
}

}  // namespace

void refuse_adapter(const fs::path& file, const std::string& why) {
  fail(fmt::format("{}: {}", file.string(), why), ErrorKind::usage);
}

std::string adapted_layer(std::string_view tensor, std::string_view prefix) {
  if (!tensor.ends_with(a_end)) return {};
  tensor.remove_suffix(a_end.size());
  if (tensor.starts_with(prefix)) tensor.remove_prefix(prefix.size());
  return std::string(tensor);
}

bool is_adapter_folder(const fs::path& folder) {
  return fs::exists(folder / adapter_config_file);
}

PeftConfig read_adapter(const fs::path& folder) {
  const fs::path file = folder / adapter_config_file;
  if (!fs::exists(file))
    refuse_adapter(folder, fmt::format("this is no adapter: it has no {}", adapter_config_file));
  PeftConfig config = read_peft_config(file);
  std::set<std::string> targets;
  if (!fs::exists(folder / adapter_weights_file) && fs::exists(folder / "adapter_model.bin"))
    refuse_adapter(folder,
                   "it has its tensors in adapter_model.bin, which is not read; open and save "
                   "it with a newer PEFT, which writes adapter_model.safetensors");
  const SafetensorsReader reader(folder / adapter_weights_file);
  for (const StoredTensor& tensor : reader.tensors()) {
    require_layer_of_block(reader.path(), tensor.name);
    if (!tensor.name.ends_with(a_end)) continue;
    const std::string layer = adapted_layer(tensor.name, peft_prefix);
    if (const std::string key = config.left_out_by(layer); !key.empty())
      refuse_adapter(reader.path(), fmt::format("tensor {} is of a layer that {} of {} leaves out",
                                                quote(tensor.name), key, adapter_config_file));
    targets.insert(without_block(layer));
  }
  if (targets.empty())
    refuse_adapter(reader.path(), "it has no tensor whose name ends with .lora_A.weight");
  config.lora.targets.assign(targets.begin(), targets.end());
  return config;
}

PeftConfig read_adapter(const fs::path& folder, const DecoderConfig& config) {
  PeftConfig adapter = read_adapter(folder);
  if (!adapter.random_start) return adapter;
  const SafetensorsReader reader(folder / adapter_weights_file);
  const std::string prefix = names_of(config.family).adapter_prefix();
  for (const std::string& layer : layers_of_blocks(config)) {
    const std::string module = prefix + layer, tensor = fmt::format("{}{}", module, a_end);
    if (adapter.left_out_by(std::string_view(module).substr(peft_prefix.size())).empty() &&
        reader.find(tensor) == nullptr)
      refuse_adapter(reader.path(),
                     fmt::format("tensor {} is missing, and by init_lora_weights of {} it would be "
                                 "random",
                                 quote(tensor), adapter_config_file));
  }
  return adapter;
}

std::string adapter_config_json(const DecoderConfig& config, const std::string& base) {
  return Json{{"peft_type", "LORA"},
              {"task_type", "CAUSAL_LM"},
              {"base_model_name_or_path", base},
              {"r", config.lora.rank},
              {"lora_alpha", config.lora.alpha},
              {"lora_dropout", config.lora.dropout},
              {"target_modules", config.lora.targets},
              {"fan_in_fan_out", config.layout == WeightLayout::in_out},
              {"bias", "none"},
              {"inference_mode", true}}
             .dump(2, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

void load_adapter(const fs::path& folder, ParameterSpace& space) {
  const SafetensorsReader reader(folder / adapter_weights_file);
  std::size_t used = 0;
  for (const auto& slot : space.slots())
    for (const StoredSlice& slice : slot.stored()) {
      const StoredTensor* const tensor = reader.find(slice.name);
      if (tensor == nullptr)
        refuse_adapter(reader.path(),
                       fmt::format("tensor {} is missing; the adapter is of another model or "
                                   "of other layers",
                                   quote(slice.name)));
      if (tensor->shape != slice.shape)
        refuse_adapter(
            reader.path(),
            fmt::format("tensor {} has shape {}, this model and rank imply {}", quote(slice.name),
                        to_string(tensor->shape), to_string(slice.shape)));
      ++used;
      read_slice(reader, *tensor, space, slot, slice);
    }
  if (used != reader.tensors().size())
    refuse_adapter(reader.path(),
                   fmt::format("it has {} tensors, of which this model's adapters have {}",
                               reader.tensors().size(), used));
}

}  // namespace sluice
