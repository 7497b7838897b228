#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/io/file.h"

namespace sluice {

// What a program must not write over. Everything here is refused as wrong use, before anything is
// written.

/// Refuses to write `file` where it is one of `inputs`, by whatever path.
void require_not_input(const std::string& flag, const std::filesystem::path& file,
                       const std::vector<std::filesystem::path>& inputs);

/// Refuses to write `file` where it exists and holds something else than `what` ("a trace of
/// train_gpt2"), which `is_ours` recognises. An empty file may be written, and so may a device.
void require_own_file(const std::string& flag, const std::filesystem::path& file,
                      const std::string& what, const std::function<bool(const File&)>& is_ours);

/// Refuses to replace an --output folder that is the --input folder, lies in it, or holds it or a
/// file that a link in it stands for.
void require_apart(const std::filesystem::path& output, const std::filesystem::path& input);

}  // namespace sluice
