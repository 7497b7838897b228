#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// Token ids as --tokens has them: "1 2 3". Throws Error (usage) for what is no whole number of at
/// least 0.
std::vector<std::int32_t> parse_token_ids(const std::string& text);

}  // namespace sluice
