#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/decoder/config.h"

namespace sluice {

/// Reads a Hugging Face config.json with the precedence and the defaults of transformers 5. Checks
/// types and ranges, accounts for every key (config_keys.h), and refuses what this program does not
/// compute: it has GPT-2 (tied embeddings, scaled attention; "bias" false: without biases), GPT-J,
/// GPT-NeoX (all three with gelu_new, gelu or relu), Llama, Mistral, Qwen2 and Qwen3 (silu, no
/// biases but Qwen2's of q, k and v).
DecoderConfig read_config(const std::filesystem::path& file);
/// The same for a config.json that has been read; errors name `file`.
DecoderConfig parse_config(const nlohmann::json& json, const std::string& file);

/// Returns what a user should know of a configuration that was read, a sentence each: keys that
/// nobody knows, and positions that a sliding window leaves out.
std::vector<std::string> notes_on(const DecoderConfig& config);

}  // namespace sluice
