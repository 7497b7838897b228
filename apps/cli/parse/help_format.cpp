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
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const override {
    std::string usage = "Usage: " + name + " [OPTIONS]", positionals;
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_positional()) continue;
      usage += " " + make_option_usage(option);
      positionals += make_option(option, true);
    }
    std::string text = app->get_description() + "\n" + usage + "\n";
    if (!positionals.empty()) text += "\nPositionals:\n" + positionals;
    std::string groups;
    for (const std::string& group : app->get_groups()) {
      std::string options;
      for (const CLI::Option* option : app->get_options())
        if (option->get_group() == group && option->nonpositional())
          options += make_option(option, false);
      if (group.empty() || options.empty()) continue;
      if (!groups.empty()) groups += "\n";
      groups += "\n" + group + ":\n" + options;
    }
    return text + groups + "\n";
  }

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
    if (line.size() >= column) line += "\n" + std::string(column, ' ');
    line.resize(std::max(line.size(), column), ' ');
    return line + option->get_description() + "\n";
  }
};

}  // namespace

void set_help_format(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormat>());
}

}  // namespace sluice
