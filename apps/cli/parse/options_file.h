#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

/// Returns a value as a --config file writes it; "" if it could not be read back, since CLI11
/// recognizes comments even inside quotes and knows few escapes.
std::string configured(const nlohmann::ordered_json& value);

/// Returns why a --config file is refused, or "". A device or a pipe might never end. Sections mean
/// nothing here, and CLI11 needs memory quadratic in the number of dots in a section's name.
std::string refuse_configuration(const std::string& path);

}  // namespace sluice
