#pragma once

#include <filesystem>
#include <string>

namespace sluice {

/// Returns the folder of this program's file, also if /proc is not mounted.
std::filesystem::path program_folder();

/// Returns the folder with the files that ship with the programs: share/sluice beside bin/ in a
/// build, beside libexec/ where the programs are installed.
std::filesystem::path shipped_files();

/// Returns what a user types to start another program of Sluice: its path in a build, quoted for a
/// shell, or `sluice NAME` where the programs are installed.
std::string command_of(const std::string& program);

}  // namespace sluice
