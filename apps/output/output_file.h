#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/command_line.h"
#include "engine/io/file.h"

namespace sluice {

// The door for what programs write. A flag that names a file or a folder to write is declared here,
// or with CommandLine::add_output() and a check like these: nothing is replaced but what the
// program wrote before. Every violation throws Error (usage), before anything is written.
// docs/reference/file-formats.md has a row for each such flag.

/// Recognises a file of the program's own by a mark in it.
using IsOurs = std::function<bool(const File&)>;

/// Recognises files that begin with one of the marks.
IsOurs begins_with(std::vector<std::string> marks);

/// Declares a flag that names a file to write. `what` ("a trace of train_gpt2") is what `is_ours`
/// recognises.
void add_output_file(CommandLine& line, const std::string& flag, std::string& value,
                     const std::string& what, const IsOurs& is_ours, const std::string& help);
/// The same for a format without a place for a mark: only an empty file or a device is written
/// over.
void add_unmarked_output(CommandLine& line, const std::string& flag, std::string& value,
                         const std::string& help);

/// Refuses a folder to write that is a file, or whose name is not UTF-8: files of a run and its log
/// could not name it.
void require_folder_name(const std::string& flag, const std::filesystem::path& folder);

/// Refuses to write `file` if it is one of `inputs`, under any path.
void require_not_input(const std::string& flag, const std::filesystem::path& file,
                       const std::vector<std::filesystem::path>& inputs);

/// Refuses to write `file` if it exists and holds anything but `what` ("a trace of train_gpt2"),
/// which `is_ours` recognises. An empty file and a device may be written.
void require_own_file(const std::string& flag, const std::filesystem::path& file,
                      const std::string& what, const IsOurs& is_ours);

/// Refuses to replace an --output folder that is the --input folder, or that of another `flag`,
/// lies in it, or contains it or the target of a link in it.
void require_apart(const std::filesystem::path& output, const std::filesystem::path& input,
                   std::string_view flag = "--input");

}  // namespace sluice
