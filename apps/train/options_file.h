#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

/// A value as a file for --config has it; "" where it could not be read back: CLI11 reads a comment
/// even inside quotes, and knows few escapes.
std::string configured(const nlohmann::ordered_json& value);

/// Why a file for --config is not read; "" if it can be. A device or a pipe might never end, and
/// CLI11 takes memory in the square of a section's dots: sections mean nothing here.
std::string refuse_configuration(const std::string& path);

}  // namespace sluice
