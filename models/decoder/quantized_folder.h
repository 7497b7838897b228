#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/io/safetensors.h"

// Model folders whose weights others have quantised (GPTQ, AWQ, bitsandbytes, FP8 and so on), which
// are not read. The functions throw Error (usage) that names the file, the key or tensor, and what
// to take instead.

namespace sluice {

/// Refuses a config.json whose "quantization_config" says that the weights are quantised. `file`
/// is its path.
void refuse_quantized(const nlohmann::json& config, const std::string& file);

/// Refuses a file of weights with tensors that only quantised models have, such as "qweight".
void refuse_quantized(const SafetensorsReader& weights);

}  // namespace sluice
