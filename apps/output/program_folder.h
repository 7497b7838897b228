#pragma once

#include <filesystem>

namespace sluice {

/// Returns the folder of this program's file, also if /proc is not mounted.
std::filesystem::path program_folder();

}  // namespace sluice
