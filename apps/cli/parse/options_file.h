#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice {

// The file of --config: TOML (https://toml.io/en/v1.0.0) with an option a line, KEY = VALUE or
// KEY = [VALUE, VALUE].

/// A key of such a file, with its values as a command line has them.
struct FileOption {
  std::string key;
  std::vector<std::string> values;
  std::string place;  ///< "train.toml:3"
};

/// Reads all keys, in the order of their names. Throws Error (usage) with file and line for what is
/// not TOML, for a table and for a date. A device or a pipe, which might never end, is refused too.
std::vector<FileOption> read_options_file(const std::string& path);

/// Returns a text, a number, a truth or an array of texts as such a file has it; "" for what it
/// cannot hold: a text that is not UTF-8.
std::string configured(const nlohmann::ordered_json& value);

}  // namespace sluice
