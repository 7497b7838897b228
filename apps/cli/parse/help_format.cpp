#include "apps/cli/parse/help_format.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

namespace sluice {
namespace {

/// As CLI11 2.1 has it: --flag TYPE=DEFAULT, and beside it or below it what it does, in one line.
struct HelpFormat : CLI::Formatter {
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text;
    if (!option->get_type_name().empty()) text += " " + get_label(option->get_type_name());
    if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += " ...";
    if (option->get_required()) text += " " + get_label("REQUIRED");
    return text;
  }

  std::string make_option(const CLI::Option* option, bool positional) const override {
    std::string line = "  " + make_option_name(option, positional) + make_option_opts(option);
    const std::size_t column = get_column_width();
    const std::string what = make_option_desc(option);
    if (what.empty()) return line + "\n";
    if (line.size() >= column) line += "\n" + std::string(column, ' ');
    line.resize(std::max(line.size(), column), ' ');
    return line + what + "\n";
  }
};

/// CLI11 2.5 and later break the lines of a description.
template <class Format>
void keep_lines_whole(Format& format) {
  constexpr std::size_t wide = 10000;
  if constexpr (requires { format.description_paragraph_width(wide); })
    format.description_paragraph_width(wide);
  if constexpr (requires { format.right_column_width(wide); }) format.right_column_width(wide);
  format.label("OPTIONS", "Options");
}

}  // namespace

void set_help_format(CLI::App& app) {
  const auto format = std::make_shared<HelpFormat>();
  keep_lines_whole(*format);
  app.formatter(format);
}

}  // namespace sluice
