#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/io/file.h"

namespace sluice {

// Checks of files that a program must not overwrite. Every violation throws Error (usage), before
// anything is written.

/// Refuses to write `file` if it is one of `inputs`, under any path.
void require_not_input(const std::string& flag, const std::filesystem::path& file,
                       const std::vector<std::filesystem::path>& inputs);

/// Refuses to write `file` if it exists and holds anything but `what` ("a trace of train_gpt2"),
/// which `is_ours` recognises. An empty file and a device may be written.
void require_own_file(const std::string& flag, const std::filesystem::path& file,
                      const std::string& what, const std::function<bool(const File&)>& is_ours);

/// Refuses to replace an --output folder that is the --input folder, or that of another `flag`,
/// lies in it, or contains it or the target of a link in it.
void require_apart(const std::filesystem::path& output, const std::filesystem::path& input,
                   std::string_view flag = "--input");

}  // namespace sluice
