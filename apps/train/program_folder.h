#pragma once

#include <filesystem>

namespace sluice {

/// The folder in which this program lies, found without /proc where that is not mounted.
std::filesystem::path program_folder();

}  // namespace sluice
