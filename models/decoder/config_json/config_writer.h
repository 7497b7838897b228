#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "models/decoder/config.h"

namespace sluice {

/// Returns the text of a config.json that Hugging Face opens. If `end_of_text` is below 0, the ids
/// of the configuration are written.
std::string config_json(const DecoderConfig& config, std::string_view torch_dtype,
                        std::int64_t end_of_text);

}  // namespace sluice
