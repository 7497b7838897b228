#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "models/decoder/config.h"

namespace sluice {

/// Reads a Hugging Face config.json. Checks types and ranges, and that the model is one that this
/// program can compute: GPT-2 (activation gelu_new, tied embeddings, scaled attention), Llama,
/// Mistral or Qwen2 (activation silu, no biases but Qwen2's of q, k and v). A sliding window that
/// is shorter than the context shortens the context.
DecoderConfig read_config(const std::filesystem::path& file);
/// The same for a config.json that has been read; errors name `file`.
DecoderConfig parse_config(const nlohmann::json& json, const std::string& file);
/// Returns the text of a config.json that Hugging Face opens. If `end_of_text` is below 0, the ids
/// of the configuration are written.
std::string config_json(const DecoderConfig& config, std::string_view torch_dtype,
                        std::int64_t end_of_text);

}  // namespace sluice
