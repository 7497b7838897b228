#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/decoder/config.h"

namespace sluice {

/// Returns the layers that `spec` means for a family: attention, mlp, all, or ends of their names
/// between commas. Throws Error (usage) for a name that is the end of no layer's name.
std::vector<std::string> lora_targets(const DecoderConfig& config, const std::string& spec);

/// The names of the linear layers of all blocks, such as "h.0.attn.c_attn".
std::vector<std::string> layers_of_blocks(const DecoderConfig& config);

/// Number of elements in all adapters of the model; 0 without adapters.
std::int64_t adapter_parameters(const DecoderConfig& config);

/// Throws Error (usage) if the rank is above the sizes of a matrix that is adapted, or if a target
/// is the end of no layer's name. `whose`: for the message, "--lora-rank 16" or "--adapter FOLDER".
void require_lora_fits(const DecoderConfig& config, const std::string& whose);

}  // namespace sluice
