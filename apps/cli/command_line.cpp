#include "apps/cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/cli/meant.h"
#include "apps/cli/number_checks.h"
#include "apps/cli/options_file.h"
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

/// Replaces _ by - in the name of a flag, so that --n_layer is accepted for --n-layer.
std::string kebab(std::string argument) {
  if (argument.rfind("--", 0) != 0) return argument;
  const auto end = std::min(argument.find('='), argument.size());
  std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return argument;
}

}  // namespace

struct CommandLine::Impl {
  /// Reads an option's current value, whether given by flag, read from a file or set by default.
  struct Value {
    std::string flag;  ///< without its dashes
    std::function<Json()> read;
  };

  CLI::App app;
  std::string heading = "Options";
  std::vector<Value> values;

  template <class T>
  void remember(const std::string& flag, const T& value) {
    values.push_back({flag.substr(2), [&value] { return json_of(value); }});
  }

  /// The same as add_parsed, with `read` as JSON.
  void add(const std::string& flag, const std::string& help,
           std::function<void(const std::string&)> write, std::function<Json()> read,
           const std::string& none = "") {
    const Json now = read();
    values.push_back({flag.substr(2), std::move(read)});
    app.add_option_function<std::string>(flag, std::move(write), help)
        ->default_str(now.is_null()     ? none
                      : now.is_string() ? now.get<std::string>()
                                        : now.dump())
        ->group(heading);
  }

  template <class T>
  void add_number(const std::string& flag, T& value, const std::string& help,
                  const CLI::Validator& check) {
    remember(flag, value);
    app.add_option(flag, value, help)->check(check)->group(heading);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const CLI::Option* option : app.get_options())
      all.insert(all.end(), option->get_lnames().begin(), option->get_lnames().end());
    return all;
  }

  [[noreturn]] void unknown(const std::string& what, const std::string& name) const {
    const std::string flag = name.substr(0, name.find('='));
    const std::string bare = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
    const std::string spelt = lower(kebab("--" + bare).substr(2));
    const auto all = names();
    const auto has = [&](const std::string& meant) {
      return std::ranges::find(all, meant.substr(2)) != all.end();
    };
    std::string guess;
    FlagMeant meant = flag_meant(spelt, has);
    if (has("--" + spelt))
      meant = {.flag = "", .text = "--" + spelt, .why = ""};
    else if (meant.text.empty())
      if (const std::string near = nearest_name(spelt, all); !near.empty())
        meant.text = "--" + near;
    // Keys in a configuration file have no dashes.
    if (what != "flag" && !meant.text.empty()) meant.text.erase(0, 2);
    if (!meant.text.empty())
      guess = "did you mean " + meant.text + "?" + (meant.why.empty() ? "" : " " + meant.why);
    fail(fmt::format("unknown {} '{}'{}; --help lists all", what, excerpt(flag),
                     guess.empty() ? "" : " (" + guess + ")"),
         ErrorKind::usage);
  }

  /// Reports an unknown flag, if there is one, in place of the error that it has caused.
  void refuse_extras() const {
    const auto extras = app.remaining();
    if (extras.empty()) return;
    if (extras.front().rfind('-', 0) == 0) unknown("flag", extras.front());
    fail(fmt::format("unexpected argument '{}': a value stands after its flag; --help lists all",
                     excerpt(extras.front())),
         ErrorKind::usage);
  }

  /// Returns the help text of the option whose name begins CLI11's message.
  std::string help_of(const std::string& message) const {
    const auto* const option =
        app.get_option_no_throw(message.substr(0, message.find_first_of(": ")));
    return option != nullptr ? option->get_description() : "";
  }

  /// CLI11 takes whatever follows a flag as its value, so --resume --output would be one.
  void refuse_flags_as_values(const std::vector<std::string>& given) const {
    for (std::size_t i = 0; i < given.size(); ++i) {
      const auto* const option =
          given[i].starts_with("--") ? app.get_option_no_throw(given[i]) : nullptr;
      if (option == nullptr || option->get_items_expected_max() == 0) continue;
      const std::string next = i + 1 < given.size() ? given[i + 1] : "";
      const std::string flag = next.substr(0, next.find('='));
      if (flag.starts_with("--") && app.get_option_no_throw(flag) != nullptr)
        fail(fmt::format("{0} needs a value, and {1} is a flag (write {0}={1} if it is the value); "
                         "--help says of {0}: {2}",
                         given[i], excerpt(flag), help_of(given[i])),
             ErrorKind::usage);
      ++i;
    }
  }

  /// CLI11 says "Could not convert: --flag = perhaps", with all of the value.
  [[noreturn]] void wrong_value(const std::string& message) const {
    const std::string marker = "Could not convert: ";
    const auto equals = message.find(" = ");
    if (!message.starts_with(marker) || equals == message.npos)
      fail(excerpt(message), ErrorKind::usage);
    const std::string flag = message.substr(marker.size(), equals - marker.size());
    fail(fmt::format("{}: '{}' is neither true nor false; --help says of it: {}", flag,
                     excerpt(message.substr(equals + 3)), help_of(flag)),
         ErrorKind::usage);
  }

  /// CLI11 says "--lr: 1 required FLOAT missing" and "--lr: At Most 1 required but received 2".
  [[noreturn]] void wrong_count(const std::string& message) const {
    const std::string flag = message.substr(0, message.find(':'));
    if (message.ends_with("missing"))
      fail(fmt::format("{} needs a value; --help says of it: {}", flag, help_of(flag)),
           ErrorKind::usage);
    fail(fmt::format("{} is given more than once; give it once", flag), ErrorKind::usage);
  }
};

CommandLine::CommandLine(const std::string& name, const std::string& description)
    : impl_(std::make_unique<Impl>()) {
  impl_->app.name(name);
  impl_->app.description(description);
  impl_->app.allow_extras(true);  // reported here, with the nearest name
  impl_->app.option_defaults()->always_capture_default();
  impl_->app.set_help_flag("--help,-h", "Print this and exit");
  impl_->app.set_version_flag("--version", name + " (Sluice) " + version(),
                              "Print the version and exit");
}

CommandLine::~CommandLine() = default;

void CommandLine::group(const std::string& heading) {
  impl_->heading = heading;
}

void CommandLine::add(const std::string& flag, std::string& value, const std::string& help) {
  impl_->remember(flag, value);
  impl_->app.add_option(flag, value, help)->group(impl_->heading);
}

void CommandLine::add(const std::string& flag, std::vector<std::string>& values,
                      const std::string& help) {
  impl_->remember(flag, values);
  // The default is an empty list, which could not be read back from a file.
  impl_->app.add_option(flag, values, help)->group(impl_->heading)->default_str("");
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
  impl_->add_number(flag, value, help, whole_numbers(0, std::numeric_limits<std::int64_t>::max()));
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
    if (std::ranges::find(choices, input) != choices.end()) return {};
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
  impl_->app.set_config("--config", "", "Read options from this file; flags win")
      ->check(CLI::Validator(refuse_configuration, ""))
      ->group(impl_->heading);
  impl_->app.allow_config_extras(CLI::config_extras_mode::error);
}

void CommandLine::require(const std::string& flag) {
  impl_->app.get_option(flag)->required();
}

bool CommandLine::given(const std::string& flag) const {
  return impl_->app.get_option(flag)->count() > 0;
}

bool CommandLine::parse(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i)
    arguments.push_back(kebab(argv[i]));  // CLI11 takes arguments from the end
  const std::vector<std::string> given(arguments.rbegin(), arguments.rend());
  impl_->refuse_flags_as_values(given);
  try {
    impl_->app.parse(arguments);
  } catch (const CLI::Success& done) {
    std::ostringstream text;  // printed by say(), which prints on one rank only
    impl_->app.exit(done, text, text);
    say(text.str());
    return false;
  } catch (const CLI::ConfigError& error) {
    const std::string text = error.what();
    const std::string marker = "INI was not able to parse ";
    if (text.rfind(marker, 0) == 0)
      impl_->unknown("key in the configuration file", text.substr(marker.size()));
    fail(text, ErrorKind::usage);
  } catch (const CLI::FileError& error) {
    fail(fmt::format("the configuration file cannot be read: {}", error.what()), ErrorKind::usage);
  } catch (const CLI::RequiredError& error) {
    impl_->refuse_extras();
    fail(fmt::format("{}: {}", error.what(), impl_->help_of(error.what())), ErrorKind::usage);
  } catch (const CLI::ArgumentMismatch& error) {
    impl_->wrong_count(error.what());
  } catch (const CLI::ConversionError& error) {
    impl_->wrong_value(error.what());
  } catch (const CLI::ParseError& error) {
    fail(error.what(), ErrorKind::usage);
  }
  impl_->refuse_extras();
  return true;
}

Json CommandLine::values() const {
  Json all = Json::object();
  for (const auto& [flag, read] : impl_->values) {
    std::string name = flag;
    std::ranges::replace(name, '-', '_');
    all[name] = read();
  }
  return all;
}

std::string CommandLine::repeated(const std::vector<std::string>& without) const {
  std::string text;
  for (const CLI::Option* option : impl_->app.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string flag = "--" + option->get_lnames().front();
    if (flag == "--config" || std::ranges::find(without, flag) != without.end()) continue;
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
  for (const auto& [flag, read] : impl_->values) {
    const Json value = read();
    if (value.is_null()) continue;  // an empty string could not be read back
    const std::string written = configured(value);
    // Writes no value rather than a truncated one.
    text += !written.empty()
                ? fmt::format("{}={}\n", flag, written)
                : fmt::format("# give as a flag, it cannot stand here: {}={}\n", flag,
                              value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return text;
}

}  // namespace sluice
