#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "models/decoder/config.h"
#include "models/lora/peft_config.h"
#include "optim/space/parameter_space.h"

// Adapters as Hugging Face's PEFT keeps them: a folder with adapter_config.json and
// adapter_model.safetensors.

namespace sluice {

inline constexpr const char* adapter_config_file = "adapter_config.json";
inline constexpr const char* adapter_weights_file = "adapter_model.safetensors";

/// Throws Error (usage).
[[noreturn]] void refuse_adapter(const std::filesystem::path& file, const std::string& why);

bool is_adapter_folder(const std::filesystem::path& folder);
/// Reads adapter_config.json and takes the targets from the file's tensors. Throws Error (usage)
/// for what is no LoRA adapter or has parts that this program lacks (DoRA, trained biases, ranks
/// that differ between layers, modules saved whole), or tensors that PEFT would ignore.
PeftConfig read_adapter(const std::filesystem::path& folder);
/// The same for a model, of which PEFT must not begin adapted layers with random numbers because
/// the file has no tensors of them.
PeftConfig read_adapter(const std::filesystem::path& folder, const DecoderConfig& config);

/// Returns the layer that a matrix A of such a file belongs to: "h.0.attn.c_attn" for
/// "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight" with the prefix
/// "base_model.model.transformer."; "" for the name of another tensor.
std::string adapted_layer(std::string_view tensor, std::string_view prefix);

/// Returns the text of adapter_config.json.
std::string adapter_config_json(const DecoderConfig& config, const std::string& base);

/// Fills the trained parameters of a model with adapters from the folder. Throws Error (usage),
/// naming the tensor, if the adapter is of another model.
void load_adapter(const std::filesystem::path& folder, ParameterSpace& space);

}  // namespace sluice
