#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// Parses token ids as in --tokens: "1 2 3". Throws Error (usage) for anything that is not a whole
/// number of at least 0.
std::vector<std::int32_t> parse_token_ids(const std::string& text);

}  // namespace sluice
