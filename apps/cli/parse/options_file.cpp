#include "apps/cli/parse/options_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

// toml++ as headers alone; a text that is no TOML is not an exception.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "engine/io/file.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

[[noreturn]] void refuse(const std::string& place, const std::string& why) {
  fail(place + ": " + why, ErrorKind::usage);
}

/// Returns the text of a file that is no device, and no larger than a file of options is.
std::string text_of(const std::string& path) try {
  constexpr std::uint64_t max_bytes = 1 << 20;
  const File file = File::open(path);
  if (file.size() > max_bytes)
    fail(fmt::format("{} has {} bytes, more than the limit of {}: it is no file of options", path,
                     file.size(), max_bytes),
         ErrorKind::usage);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  constexpr std::string_view mark = "\xEF\xBB\xBF";  // U+FEFF, which some editors write first
  return text.starts_with(mark) ? text.substr(mark.size()) : text;
} catch (const Error& error) {
  fail(fmt::format("--config: {}", error.what()), ErrorKind::usage);
}

/// A text that toml++ fails at: the line, 0 if there is none, and a sentence for the user.
struct Hazard {
  int line = 0;
  const char* why = "";
};

/// Finds what toml++ fails at. It makes a table of each dot in a key, and frees them by recursion.
/// Version 3.3 has undefined behaviour where it looks for white space and finds, for instance,
/// U+FEFB: outside strings, where TOML has ASCII alone, and behind a backslash at the end of a
/// line.
Hazard hazard_in(std::string_view text) {
  constexpr int most = 16;  // dots between two of = , [ { and line breaks: more than in any date
  std::string_view quotes;  // of the string that `i` is in
  int line = 1, dots = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      if (quotes.size() == 1) quotes = {};
    }
    if (!quotes.empty()) {
      if (c == '\\' && quotes[0] == '"') {
        const char next = text.substr(++i, 1).empty() ? '\n' : text[i];
        if (next <= ' ' || next > '~') return {line, "a backslash begins an escape, as in \\n"};
      } else if (text.substr(i).starts_with(quotes)) {
        i += quotes.size() - 1;
        quotes = {};
      }
    } else if (c == '"' || c == '\'') {
      quotes = text.substr(i, text.substr(i).starts_with(std::string(3, c)) ? 3 : 1);
      i += quotes.size() - 1;
    } else if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (static_cast<signed char>(c) < 0) {
      return {line, "texts stand in double quotes"};
    } else if (c == '.') {
      if (++dots > most) return {line, "no option has a dot in its name"};
    } else if (std::string_view("=,[{\n").find(c) != std::string_view::npos) {
      dots = 0;
    }
  }
  return {};
}

/// Returns how TOML has the line KEY=word; "" for any other line.
std::string with_quotes(std::string_view text, std::size_t number) {
  for (; number > 1 && text.find('\n') != text.npos; --number)
    text.remove_prefix(text.find('\n') + 1);
  const std::string_view line = text.substr(0, text.find_first_of("#\r\n"));
  const auto equals = std::min(line.find('='), line.size());
  const auto trimmed = [](std::string_view part) {
    part.remove_prefix(std::min(part.find_first_not_of(" \t"), part.size()));
    return part.substr(0, part.find_last_not_of(" \t") + 1);
  };
  const std::string_view key = trimmed(line.substr(0, equals));
  const std::string_view value = trimmed(line.substr(std::min(equals + 1, line.size())));
  constexpr std::size_t longest = 60;
  if (key.empty() || value.empty() || line.size() > longest) return "";
  if (value.find_first_of("\"'\\[]{}") != value.npos) return "";
  return fmt::format("write {} = \"{}\"", excerpt(key), excerpt(value));
}

toml::table parsed(const std::string& text, const std::string& path) {
  if (const Hazard found = hazard_in(text); found.line > 0)
    refuse(fmt::format("{}:{}", path, found.line), found.why);
  toml::parse_result result = toml::parse(std::string_view(text));
  if (result) return std::move(result).table();
  const toml::parse_error& error = result.error();
  std::string_view why = error.description();
  constexpr std::string_view begins = "Error while parsing ";
  if (why.starts_with(begins)) why.remove_prefix(begins.size());
  const std::string meant = with_quotes(text, error.source().begin.line);
  refuse(fmt::format("{}:{}", path, error.source().begin.line),
         fmt::format("this is not TOML: {}; {}", excerpt(why),
                     !meant.empty() ? meant
                                    : "options stand one KEY = VALUE a line, with texts in double "
                                      "quotes"));
}

/// Returns a value as a command line has it.
std::string argument_of(const toml::node& value, const std::string& place) {
  if (const auto* text = value.as_string()) {
    if (text->get().find('\0') != std::string::npos) refuse(place, "the text has a NUL");
    return text->get();
  }
  if (const auto* number = value.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = value.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* truth = value.as_boolean()) return truth->get() ? "true" : "false";
  refuse(place, value.is_table()   ? "options stand without sections, one KEY = VALUE a line"
                : value.is_array() ? "no option takes an array in an array"
                                   : "a date has to stand in double quotes");
}

/// Returns the text that is read back from a file with the line key = written.
std::vector<std::string> read_back(const std::string& written) {
  if (hazard_in(written).line > 0) return {};
  const toml::parse_result result = toml::parse("key = " + written);
  if (!result) return {};
  const toml::node* const value = result.table().get("key");
  if (value == nullptr || result.table().size() != 1) return {};
  return {argument_of(*value, "")};
}

}  // namespace

std::vector<FileOption> read_options_file(const std::string& path) {
  std::vector<FileOption> options;
  const toml::table table = parsed(text_of(path), path);
  for (auto&& [name, value] : table) {
    FileOption& option = options.emplace_back();
    option.key = std::string(std::string_view(name));
    option.place = fmt::format("{}:{}", path, value.source().begin.line);
    const std::string place = option.place + ": " + excerpt(option.key);
    if (const toml::array* const array = value.as_array()) {
      for (const toml::node& element : *array)
        option.values.push_back(argument_of(element, place));
    } else {
      option.values.push_back(argument_of(value, place));
    }
    if (option.values.empty()) refuse(place, "the array is empty; leave the key out");
  }
  return options;
}

std::string configured(const nlohmann::ordered_json& value) {
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const nlohmann::ordered_json& part : value)
      if (parts.emplace_back(configured(part)).empty()) return "";
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  // JSON's escapes are TOML's, except that DEL needs one.
  std::string written = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (auto at = written.find('\x7F'); at != written.npos; at = written.find('\x7F', at))
    written.replace(at, 1, "\\u007F");
  const std::vector<std::string> read = read_back(written);
  if (!value.is_string()) return read.empty() ? fmt::format("\"{}\"", written) : written;
  return read == std::vector{value.get<std::string>()} ? written : "";
}

}  // namespace sluice
