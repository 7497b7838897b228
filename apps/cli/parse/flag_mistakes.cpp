#include "apps/cli/parse/flag_mistakes.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/cli/parse/meant.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> all;
  for (const CLI::Option* option : app.get_options())
    all.insert(all.end(), option->get_lnames().begin(), option->get_lnames().end());
  return all;
}

/// Returns the option of a long flag; nullptr for other arguments.
const CLI::Option* option_of(const CLI::App& app, const std::string& argument) {
  return argument.starts_with("--") ? app.get_option_no_throw(argument) : nullptr;
}

[[noreturn]] void refuse_truth(const CLI::App& app, const std::string& flag,
                               const std::string& value) {
  fail(fmt::format("{}: '{}' is neither true nor false; --help says of it: {}", flag,
                   excerpt(value), help_of(app, flag)),
       ErrorKind::usage);
}

}  // namespace

void check_empty_value(CLI::Option& option, const std::string& flag) {
  for (int number = 0;; ++number) {
    std::string empty;
    try {
      const CLI::Validator* const check = option.get_validator(number);
      if (const std::string why = (*check)(empty); !why.empty())
        fail(fmt::format("{}: {}", flag, why), ErrorKind::usage);
    } catch (const CLI::OptionNotFound&) {
      return;
    }
  }
}

std::string kebab(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const auto end = std::min(argument.find('='), argument.size());
  std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return argument;
}

std::vector<std::string> as_meant(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> meant;
  for (const std::string& argument : arguments) {
    meant.push_back(kebab(argument));
    std::string& flag = meant.back();
    if (flag.find('=') + 1 != flag.size()) continue;
    const std::string name = flag.substr(0, flag.size() - 1);
    const CLI::Option* const option = option_of(app, name);
    if (option == nullptr) continue;
    if (option->get_items_expected_max() == 0) refuse_truth(app, name, "");
    flag = name;
    meant.emplace_back();
  }
  return meant;
}

void refuse_flags_as_values(CLI::App& app, const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const CLI::Option* const option = option_of(app, arguments[i]);
    if (option == nullptr || option->get_items_expected_max() == 0) continue;
    const std::string next = i + 1 < arguments.size() ? arguments[i + 1] : "";
    const std::string flag = next.substr(0, next.find('='));
    if (option_of(app, flag) != nullptr)
      fail(fmt::format("{0} needs a value, and {1} is a flag (write {0}={1} if it is the value); "
                       "--help says of {0}: {2}",
                       arguments[i], excerpt(flag), help_of(app, arguments[i])),
           ErrorKind::usage);
    if (i + 1 < arguments.size() && next.empty())
      check_empty_value(*app.get_option(arguments[i]), arguments[i]);
    ++i;
  }
}

void refuse_extras(const CLI::App& app) {
  const auto extras = app.remaining();
  if (extras.empty()) return;
  if (extras.front().starts_with('-')) refuse_name(app, "flag", extras.front());
  fail(fmt::format("unexpected argument '{}': a value stands after its flag; --help lists all",
                   excerpt(extras.front())),
       ErrorKind::usage);
}

void refuse_name(const CLI::App& app, const std::string& what, const std::string& name) {
  const std::string flag = name.substr(0, name.find('='));
  const std::string bare = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  const std::string spelt = lower(kebab("--" + bare).substr(2));
  const auto all = names_of(app);
  const auto has = [&](const std::string& meant) {
    return std::ranges::find(all, meant.substr(2)) != all.end();
  };
  std::string guess;
  FlagMeant meant = flag_meant(spelt, has);
  if (has("--" + spelt))
    meant = {.flag = "", .text = "--" + spelt, .why = ""};
  else if (meant.text.empty())
    if (const std::string near = nearest_name(spelt, all); !near.empty()) meant.text = "--" + near;
  // Keys in a file of options have no dashes.
  if (what != "flag" && !meant.text.empty()) meant.text.erase(0, 2);
  if (!meant.text.empty())
    guess = "did you mean " + meant.text + "?" + (meant.why.empty() ? "" : " " + meant.why);
  fail(fmt::format("unknown {} '{}'{}; --help lists all", what, excerpt(flag),
                   guess.empty() ? "" : " (" + guess + ")"),
       ErrorKind::usage);
}

std::string brief(const std::string& help) {
  constexpr std::size_t most = 160;
  return help.size() <= most ? help : help.substr(0, help.rfind(' ', most - 3)) + "...";
}

std::string help_of(const CLI::App& app, const std::string& message) {
  const auto* const option =
      app.get_option_no_throw(message.substr(0, message.find_first_of(": ")));
  return option != nullptr ? brief(option->get_description()) : "";
}

void refuse_value(const CLI::App& app, const std::string& message) {
  const std::string marker = "Could not convert: ";
  const auto equals = message.find(" = ");
  if (!message.starts_with(marker) || equals == message.npos)
    fail(excerpt(message), ErrorKind::usage);
  refuse_truth(app, message.substr(marker.size(), equals - marker.size()),
               message.substr(equals + 3));
}

void refuse_count(const CLI::App& app, const std::string& message) {
  const std::string flag = message.substr(0, message.find(':'));
  if (message.ends_with("missing"))
    fail(fmt::format("{} needs a value; --help says of it: {}", flag, help_of(app, flag)),
         ErrorKind::usage);
  fail(fmt::format("{} is given more than once; give it once", flag), ErrorKind::usage);
}

}  // namespace sluice
