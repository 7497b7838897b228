#include "models/lora/adapter_file.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/io/json_document.h"
#include "engine/io/safetensors.h"
#include "engine/io/stored_tensor.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view a_end = ".lora_A.weight";

/// Refuses settings of PEFT that change what an adapter computes, unless they have the value that
/// changes nothing.
void require_plain(const fs::path& file, const Json& json) {
  const auto is_off = [](const Json& value) {
    return value.is_null() || value == false ||
           ((value.is_array() || value.is_object()) && value.empty());
  };
  if (json.value("peft_type", "LORA") != "LORA")
    refuse_adapter(file, fmt::format("its peft_type is {}, and this program has LORA alone",
                                     shown(json.at("peft_type"))));
  if (const Json bias = json.value("bias", Json("none")); bias != "none" && !bias.is_null())
    refuse_adapter(file,
                   fmt::format("its bias is {}: trained biases are not supported", shown(bias)));
  for (const char* name :
       {"use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias",
        "layer_replication", "trainable_token_indices", "target_parameters", "use_qalora",
        "arrow_config", "alora_invocation_tokens"})
    if (const auto found = json.find(name); found != json.end() && !is_off(*found))
      refuse_adapter(file, fmt::format("{} is {}, which is not supported", name, shown(*found)));
}

/// Refuses adapters that begin with a change of the model's own weights, which PEFT makes again
/// when it opens them.
void require_own_start(const fs::path& file, const Json& json) {
  const Json start = json.value("init_lora_weights", Json(true));
  if (start.is_boolean() || start.is_null() || start == "gaussian" || start == "orthogonal" ||
      start == "eva")
    return;
  refuse_adapter(file,
                 fmt::format("init_lora_weights is {}, which changes the model's own weights; "
                             "save the adapter with PEFT's "
                             "path_initial_model_for_weight_conversion first",
                             shown(start)));
}

/// Returns "attn.c_attn" from "h.0.attn.c_attn".
std::string without_block(std::string_view layer) {
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  std::string_view rest = layer;
  while (rest.find('.') != std::string_view::npos) {
    const std::string_view first = rest.substr(0, rest.find('.'));
    rest.remove_prefix(first.size() + 1);
    if (is_number(first)) return std::string(rest);
  }
  return std::string(layer);
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

AdapterDescription read_adapter(const fs::path& folder) {
  const fs::path file = folder / adapter_config_file;
  if (!fs::exists(file))
    refuse_adapter(folder, fmt::format("this is no adapter: it has no {}", adapter_config_file));
  AdapterDescription found;
  try {
    const Json json = read_json_file(file, 1 << 20);
    if (!json.is_object()) refuse_adapter(file, "it is no JSON object");
    require_plain(file, json);
    require_own_start(file, json);
    if (!json.at("r").is_number_integer() || json.at("r") < 1 || json.at("r") > largest_size)
      refuse_adapter(file, fmt::format("r is {}, and a rank is a whole number from 1 to {}",
                                       shown(json.at("r")), largest_size));
    found.lora.rank = json.at("r").get<std::int64_t>();
    found.lora.alpha = json.at("lora_alpha").get<double>();
    found.lora.dropout = json.value("lora_dropout", 0.0);
    if (!(found.lora.dropout >= 0 && found.lora.dropout < 1))
      refuse_adapter(file, fmt::format("lora_dropout is {}, and a probability is from 0 to below 1",
                                       found.lora.dropout));
    // Rank-stabilised LoRA divides by the root of the rank.
    if (json.value("use_rslora", false))
      found.lora.alpha *= std::sqrt(static_cast<double>(found.lora.rank));
    if (const auto base = json.find("base_model_name_or_path");
        base != json.end() && base->is_string())
      found.base = base->get<std::string>();
  } catch (const Json::exception& error) {
    refuse_adapter(file,
                   fmt::format("r, lora_alpha or another field is missing or has another type ({})",
                               error.what()));
  }
  std::set<std::string> targets;
  if (!fs::exists(folder / adapter_weights_file) && fs::exists(folder / "adapter_model.bin"))
    refuse_adapter(folder,
                   "it has its tensors in adapter_model.bin, which is not read; open and save "
                   "it with a newer PEFT, which writes adapter_model.safetensors");
  const SafetensorsReader reader(folder / adapter_weights_file);
  for (const StoredTensor& tensor : reader.tensors())
    if (tensor.name.ends_with(a_end))
      targets.insert(without_block(adapted_layer(tensor.name, "base_model.model.")));
  if (targets.empty())
    refuse_adapter(folder / adapter_weights_file,
                   "it has no tensor whose name ends with .lora_A.weight");
  found.lora.targets.assign(targets.begin(), targets.end());
  return found;
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
      read_floats(reader, *tensor, 0, element_count(slice.shape), space.weight_dtype(),
                  [&](std::int64_t first, std::span<std::byte> values) {
                    space.write_shard(slot, slice.first + first, values);
                  });
    }
  if (used != reader.tensors().size())
    refuse_adapter(reader.path(),
                   fmt::format("it has {} tensors, of which this model's adapters have {}",
                               reader.tensors().size(), used));
}

}  // namespace sluice
