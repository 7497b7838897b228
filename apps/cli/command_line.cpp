#include "apps/cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/cli/parse/flag_mistakes.h"
#include "apps/cli/parse/help_format.h"
#include "apps/cli/parse/meant.h"
#include "apps/cli/parse/number_checks.h"
#include "apps/cli/parse/options_file.h"
#include "apps/cli/progress.h"
#include "apps/cli/shell_quote.h"
#include "apps/cli/sizes.h"
#include "apps/cli/version.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

CLI::Validator numbers(double low, double high) {
  return {[=](const std::string& text) { return wrong_number(text, low, high); }, ""};
}

CLI::Validator whole_numbers(std::int64_t low, std::int64_t high) {
  return {[=](const std::string& text) { return wrong_whole_number(text, low, high); }, ""};
}

/// Refuses the empty value that --flag=$VARIABLE has if there is no such variable.
CLI::Validator some_text(const std::string& help) {
  return {[help](const std::string& text) {
            return text.empty() ? "the value is empty; --help says of it: " + brief(help) : "";
          },
          ""};
}

using Json = nlohmann::ordered_json;

template <class T>
Json json_of(const T& value) {
  return value;
}
template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}
Json json_of(const std::string& value) {
  return value.empty() ? Json() : Json(value);
}
/// Returns a single value as a plain value, several as an array, and none as null.
Json json_of(const std::vector<std::string>& values) {
  if (values.size() == 1) return json_of(values[0]);
  return values.empty() ? Json() : Json(values);
}

/// Does what CLI11 may refuse, and refuses it in the words of this program.
template <class Action>
void in_own_words(const CLI::App& app, const Action& action) try {
  action();
} catch (const CLI::RequiredError& error) {
  refuse_extras(app);
  fail(fmt::format("{}: {}", error.what(), help_of(app, error.what())), ErrorKind::usage);
} catch (const CLI::ArgumentMismatch& error) {
  refuse_count(app, error.what());
} catch (const CLI::ConversionError& error) {
  refuse_value(app, error.what());
} catch (const CLI::Success&) {
  throw;  // --help, --version
} catch (const CLI::ParseError& error) {
  fail(error.what(), ErrorKind::usage);
}

}  // namespace

struct CommandLine::Impl {
  /// Reads an option's current value, whether given by flag, read from a file or set by default.
  struct Value {
    std::string flag;  ///< without its dashes
    std::function<Json()> read;
    Role role = Role::training;
  };

  CLI::App app;
  std::string heading = "Options";
  Role role = Role::training;
  std::vector<Value> values;
  std::vector<std::function<void()>> checks;  ///< of what will be written

  /// Gives an option what all have but flags and those of add_text.
  CLI::Option* finish(CLI::Option* option) const {
    return option->check(some_text(option->get_description()))->group(heading);
  }

  template <class T>
  void remember(const std::string& flag, const T& value) {
    values.push_back({flag.substr(2), [&value] { return json_of(value); }, role});
  }

  /// The same as add_parsed, with `read` as JSON.
  void add(const std::string& flag, const std::string& help,
           std::function<void(const std::string&)> write, std::function<Json()> read,
           const std::string& none = "") {
    const Json now = read();
    values.push_back({flag.substr(2), std::move(read), role});
    finish(app.add_option_function<std::string>(flag, std::move(write), help))
        ->default_str(now.is_null()     ? none
                      : now.is_string() ? now.get<std::string>()
                                        : now.dump());
  }

  /// Takes an option from a file, unless the command line has it.
  void take(const FileOption& given) {
    const bool declared = std::ranges::find(values, given.key, &Value::flag) != values.end();
    const std::string flag = "--" + given.key;
    CLI::Option* const option = app.get_option_no_throw(flag);
    if (option == nullptr) refuse_name(app, "option", given.key);
    if (!declared) fail(flag + " is for the command line alone", ErrorKind::usage);
    if (option->count() > 0) return;
    if (given.values.size() > 1 && option->get_items_expected_max() <= 1)
      fail(flag + ": an array, where one value is needed", ErrorKind::usage);
    in_own_words(app, [&] {
      for (const std::string& value : given.values)
        if (value.empty()) check_empty_value(*option, flag);
      option->add_result(given.values);
      option->run_callback();
    });
  }

  void read_file(const std::string& path) {
    for (const FileOption& given : read_options_file(path))
      try {
        take(given);
      } catch (const Error& error) {
        const std::string why = error.what();
        fail(given.place + ": " + why.substr(why.starts_with("--" + given.key) ? 2 : 0),
             ErrorKind::usage);
      }
  }

  template <class T>
  void add_number(const std::string& flag, T& value, const std::string& help,
                  const CLI::Validator& check) {
    remember(flag, value);
    finish(app.add_option(flag, value, help))->check(check);
  }
};

CommandLine::CommandLine(const std::string& name, const std::string& description)
    : impl_(std::make_unique<Impl>()) {
  impl_->app.name(name);
  impl_->app.description(description);
  set_help_format(impl_->app);
  impl_->app.allow_extras(true);  // reported here, with the nearest name
  impl_->app.option_defaults()->always_capture_default();
  // The group's usual name is another one from CLI11 2.5 on.
  impl_->app.set_help_flag("--help,-h", "Print this and exit")->group("Options");
  impl_->app
      .set_version_flag("--version", name + " (Sluice) " + version(), "Print the version and exit")
      ->group("Options");
}

CommandLine::~CommandLine() = default;

void CommandLine::group(const std::string& heading) {
  impl_->heading = heading;
}

void CommandLine::role(Role role) {
  impl_->role = role;
}

void CommandLine::add(const std::string& flag, std::string& value, const std::string& help) {
  impl_->remember(flag, value);
  impl_->finish(impl_->app.add_option(flag, value, help));
}

void CommandLine::add_text(const std::string& flag, std::string& value, const std::string& help) {
  const auto read = [&value, usual = value] {
    return value == usual ? json_of(value) : Json(value);
  };
  impl_->values.push_back({flag.substr(2), read, impl_->role});
  impl_->app.add_option(flag, value, help)->group(impl_->heading);
}

void CommandLine::add_output(const std::string& flag, std::string& value, const std::string& help,
                             std::function<void(const std::string&)> check) {
  add(flag, value, help);
  impl_->app.get_option(flag)->type_name("OUTPUT");
  impl_->checks.emplace_back([&value, check = std::move(check)] {
    if (!value.empty()) check(value);
  });
}

void CommandLine::add(const std::string& flag, std::vector<std::string>& values,
                      const std::string& help) {
  impl_->remember(flag, values);
  // The default is an empty list, which could not be read back from a file.
  impl_->finish(impl_->app.add_option(flag, values, help))->default_str("");
}

void CommandLine::add(const std::string& flag, bool& value, const std::string& help) {
  impl_->remember(flag, value);
  auto* const option = impl_->app.add_flag(flag, value, help)->group(impl_->heading);
  if (value) option->default_str("true");  // CLI11 shows no default for a flag in --help
}

void CommandLine::add(const std::string& flag, std::int64_t& value, const std::string& help,
                      std::int64_t low, std::int64_t high) {
  impl_->add_number(flag, value, help, whole_numbers(low, high));
}

void CommandLine::add(const std::string& flag, std::optional<std::int64_t>& value,
                      const std::string& help, std::int64_t low, std::int64_t high) {
  impl_->add_number(flag, value, help, whole_numbers(low, high));
}

void CommandLine::add(const std::string& flag, std::uint64_t& value, const std::string& help) {
  impl_->add_number(flag, value, help, {wrong_natural_number, ""});
}

void CommandLine::add(const std::string& flag, double& value, const std::string& help, double low,
                      double high) {
  impl_->add_number(flag, value, help, numbers(low, high));
}

void CommandLine::add(const std::string& flag, std::optional<double>& value,
                      const std::string& help, double low, double high) {
  impl_->add_number(flag, value, help, numbers(low, high));
}

void CommandLine::add_or_auto(const std::string& flag, std::optional<std::int64_t>& value,
                              const std::string& help, std::int64_t low) {
  const auto write = [flag, &value, low](const std::string& text) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    value = text == "auto" ? std::nullopt : whole_number(text, low, most);
    if (text != "auto" && !value)
      fail(fmt::format("{}: '{}' is neither auto nor a whole number of at least {}", flag,
                       excerpt(text), low),
           ErrorKind::usage);
  };
  impl_->add(
      flag, help, write, [&value] { return json_of(value); }, "auto");
}

void CommandLine::add_or_auto(const std::string& flag, std::optional<std::string>& value,
                              const std::string& help) {
  const auto write = [&value](const std::string& text) {
    value = text == "auto" ? std::nullopt : std::optional(text);
  };
  add_parsed(
      flag, help, write, [&value] { return value.value_or(""); }, "auto");
}

void CommandLine::add_size(const std::string& flag, std::optional<std::size_t>& value,
                           const std::string& help, std::size_t least) {
  add_parsed(
      flag, help, [=, &value](const std::string& text) { value = parse_bytes(flag, text, least); },
      [&value] { return value ? spell_bytes(*value) : ""; });
}

void CommandLine::add_choice(const std::string& flag, std::string& value, const std::string& help,
                             const std::vector<std::string>& choices) {
  add_word(
      flag, help, choices, [&value](const std::string& word) { value = word; },
      [&value] { return value; });
}

void CommandLine::add_word(const std::string& flag, const std::string& help,
                           const std::vector<std::string>& choices,
                           std::function<void(const std::string&)> write,
                           std::function<std::string()> read, const std::string& none) {
  const auto check = [choices](std::string& input) -> std::string {
    if (input.empty() || std::ranges::find(choices, input) != choices.end()) return {};
    const std::string meant = choice_meant(input, choices);
    if (meant == lower(input) && !meant.empty()) {
      input = meant;  // accepts BF16 for bf16
      return {};
    }
    return fmt::format("'{}' is not one of {}{}", excerpt(input), fmt::join(choices, ", "),
                       meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
  };
  add_parsed(flag, fmt::format("{} ({})", help, fmt::join(choices, "|")), std::move(write),
             std::move(read), none);
  impl_->app.get_option(flag)->transform(CLI::Validator(check, ""));
}

void CommandLine::add_parsed(const std::string& flag, const std::string& help,
                             std::function<void(const std::string&)> write,
                             std::function<std::string()> read, const std::string& none) {
  const auto json = [read = std::move(read)] { return json_of(read()); };
  impl_->add(flag, help, write, json, none);
}

void CommandLine::allow_config_file() {
  const auto read = [this](const std::string& path) { impl_->read_file(path); };
  impl_->finish(impl_->app.add_option_function<std::string>(
      "--config", read, "Read options from this file of TOML; flags win"));
}

void CommandLine::require(const std::string& flag) {
  impl_->app.get_option(flag)->required();
}

bool CommandLine::given(const std::string& flag) const {
  return impl_->app.get_option(flag)->count() > 0;
}

bool CommandLine::parse(int argc, const char* const* argv) {
  std::vector<std::string> arguments =
      as_meant(impl_->app, {argv + std::min(argc, 1), argv + argc});
  refuse_flags_as_values(impl_->app, arguments);
  std::ranges::reverse(arguments);  // CLI11 takes them from the end
  try {
    in_own_words(impl_->app, [&] { impl_->app.parse(arguments); });
  } catch (const CLI::Success& done) {
    std::ostringstream text;  // printed by say(), which prints on one rank only
    impl_->app.exit(done, text, text);
    say(text.str());
    return false;
  }
  refuse_extras(impl_->app);
  for (const auto& check : impl_->checks)
    check();
  return true;
}

Json CommandLine::values() const {
  Json all = Json::object();
  for (const auto& [flag, read, role] : impl_->values) {
    std::string name = flag;
    std::ranges::replace(name, '-', '_');
    all[name] = read();
  }
  return all;
}

std::string CommandLine::repeated(const std::vector<Role>& roles) const {
  std::string text;
  for (const Impl::Value& declared : impl_->values) {
    const std::string flag = "--" + declared.flag;
    const CLI::Option* const option = impl_->app.get_option(flag);
    if (option->count() == 0 || std::ranges::find(roles, declared.role) == roles.end()) continue;
    for (const std::string& value : option->results()) {
      text += " " + flag;
      if (option->get_items_expected_max() > 0)
        text += " " + quoted(value);
      else if (value != "true")
        text += "=" + value;
    }
  }
  return text;
}

std::string CommandLine::resolved() const {
  std::string text;
  for (const auto& [flag, read, role] : impl_->values) {
    const Json value = read();
    if (value.is_null()) continue;
    const std::string written = configured(value);
    text += !written.empty()
                ? fmt::format("{}={}\n", flag, written)
                : fmt::format("# give as a flag, it cannot stand here: {}={}\n", flag,
                              value.dump(-1, ' ', true, Json::error_handler_t::replace));
  }
  return text;
}

}  // namespace sluice
