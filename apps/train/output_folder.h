#pragma once

#include <filesystem>
#include <string>

namespace sluice {

/// Where a run writes: --output, or runs/<time>.
std::filesystem::path output_folder(const std::string& given);

/// Refuses (usage) a folder that could not be written, without making it.
void require_writable(const std::filesystem::path& output);

}  // namespace sluice
