#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/decoder/config.h"

namespace sluice {

/// Reads a Hugging Face config.json. Checks types and ranges, and that the model is one that this
/// program can compute: GPT-2 (tied embeddings, scaled attention; "bias" false: without biases),
/// GPT-J, GPT-NeoX (all three with gelu_new, gelu or relu), Llama, Mistral, Qwen2 or Qwen3 (silu,
/// no biases but Qwen2's of q, k and v). A sliding window that is shorter than the context shortens
/// the context.
DecoderConfig read_config(const std::filesystem::path& file);
/// The same for a config.json that has been read; errors name `file`.
DecoderConfig parse_config(const nlohmann::json& json, const std::string& file);

}  // namespace sluice
