#include "apps/cli/parse/options_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <vector>

#include "engine/io/file.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

/// Returns the values that CLI11 reads from a --config file with the line KEY=written.
std::vector<std::string> read_back(const std::string& written) {
  std::istringstream file("key=" + written + "\n");
  const auto items = CLI::ConfigTOML().from_config(file);
  return items.size() == 1 ? items[0].inputs : std::vector<std::string>();
}

/// Returns the fault of a line that CLI11 would skip or cut silently, or "". Reads array lines on.
std::string refuse_line(const std::string& line, std::istream& lines) {
  constexpr std::size_t fewest = 3;  // CLI11 ignores shorter lines; in bytes
  if (line.empty() || line[0] == '#' || line[0] == ';') return {};
  if (line.size() < fewest) return "options stand one KEY=VALUE a line";
  const auto equals = line.find('=');
  // CLI11 skips a key with more than 255 dots.
  if (line.substr(0, equals).find('.') != line.npos) return "no option has a dot in its name";
  if (equals == line.npos) return {};
  std::string value = line.substr(equals + 1, line.find('#', equals) - equals - 1);
  CLI::detail::trim(value);
  if (!value.starts_with('[')) return {};
  // CLI11 takes the last character of the file for a missing closing bracket, and a lone bracket
  // for a value.
  for (std::string more; value.size() > 1 && !value.ends_with(']') && std::getline(lines, more);) {
    CLI::detail::trim(more);
    value += more;
  }
  return value.size() > 1 && value.ends_with(']')
             ? ""
             : "its array has no end; write [\"one\", \"another\"]";
}

}  // namespace

std::string configured(const nlohmann::ordered_json& value) {
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const nlohmann::ordered_json& part : value)
      if (parts.emplace_back(configured(part)).empty()) return "";
    const std::string written = fmt::format("[{}]", fmt::join(parts, ","));
    return read_back(written) == value.get<std::vector<std::string>>() ? written : "";
  }
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  std::string written = CLI::detail::convert_arg_for_ini(text);
  // CLI11 writes line breaks as escapes from version 2.4 on, which earlier ones read as they stand.
  if ((written + text).find_first_of("#\r\n") != std::string::npos) return "";
  return read_back(written) == std::vector{text} ? written : "";
}

std::string refuse_configuration(const std::string& path) try {
  constexpr std::uint64_t max_bytes = 1 << 20;
  const File file = File::open(path);
  if (file.size() > max_bytes)
    return fmt::format("{} has {} bytes, more than the limit of {}: it is no file of options", path,
                       file.size(), max_bytes);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  if (text.find('\0') != text.npos)
    return fmt::format("{} is not text: NUL at byte {}", path, text.find('\0'));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CLI::detail::trim(line);
    if (line.starts_with('[') && line != "[default]")
      return fmt::format(
          "{} has the section {}: options stand without sections, one KEY=VALUE a line", path,
          quote(line));
    if (const std::string why = refuse_line(line, lines); !why.empty())
      return fmt::format("{} has the line {}: {}", path, quote(line), why);
  }
  return {};
} catch (const Error& error) {
  return error.what();
}

}  // namespace sluice
