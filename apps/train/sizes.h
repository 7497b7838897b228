#pragma once

#include <cstddef>
#include <string>

namespace sluice {

/// "11GiB", "512MiB", "1.5GB", "4096": bytes. Throws Error (usage) naming the flag otherwise.
std::size_t parse_bytes(const std::string& flag, const std::string& text);
/// The shortest exact spelling that parse_bytes reads back.
std::string spell_bytes(std::size_t bytes);

}  // namespace sluice
