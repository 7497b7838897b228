#include "apps/train/command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/train/progress.h"
#include "apps/train/terminal.h"
#include "apps/train/version.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

/// Levenshtein's distance, for "did you mean".
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

std::string number(double value) {
  return fmt::format("{:.8g}", value);
}

/// A validator that prints the allowed range and refuses NaN.
CLI::Validator range(double low, double high) {
  const std::string text = fmt::format("from {} to {}", number(low), number(high));
  const auto check = [low, high, text](std::string& input) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(input, value) || !(value >= low && value <= high))
      return fmt::format("'{}' is not a number {}", printable(input), text);
    return {};
  };
  return CLI::Validator(check, "");
}

CLI::Validator integer_range(std::int64_t low, std::int64_t high) {
  const auto check = [low, high](std::string& input) -> std::string {
    // Not CLI11's own conversion, which silently saturates.
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(input.data(), input.data() + input.size(), value);
    const bool whole = error == std::errc() && end == input.data() + input.size();
    if (whole && value >= low && value <= high) return {};
    if (high == std::numeric_limits<std::int64_t>::max())
      return fmt::format("'{}' is not a whole number of at least {}", printable(input), low);
    return fmt::format("'{}' is not a whole number from {} to {}", printable(input), low, high);
  };
  return CLI::Validator(check, "");
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

/// --n_layer is accepted for --n-layer.
std::string kebab(std::string argument) {
  if (argument.rfind("--", 0) != 0) return argument;
  const auto end = std::min(argument.find('='), argument.size());
  std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return argument;
}

}  // namespace

struct CommandLine::Impl {
  /// As it is, whether it was given, read or set beforehand.
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

  std::string nearest(const std::string& flag) const {
    std::string best;
    std::size_t distance = std::max<std::size_t>(3, flag.size() / 2);
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& known : option->get_lnames()) {
        const std::size_t d = edit_distance(flag, known);
        if (d < distance) {
          distance = d;
          best = known;
        }
      }
    }
    return best;
  }

  [[noreturn]] void unknown(const std::string& what, const std::string& name) const {
    const std::string flag = name.substr(0, name.find('='));
    const std::string bare = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
    const std::string guess = nearest(kebab("--" + bare).substr(2));
    fail(fmt::format("unknown {} '{}'{}; --help lists all", what, printable(flag),
                     guess.empty() ? "" : fmt::format(" (did you mean --{}?)", guess)),
         ErrorKind::usage);
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

void CommandLine::add(const std::string& flag, bool& value, const std::string& help) {
  impl_->remember(flag, value);
  auto* const option = impl_->app.add_flag(flag, value, help)->group(impl_->heading);
  // For --help, which would not show it.
  if (value) option->default_str("true");
}

void CommandLine::add(const std::string& flag, std::int64_t& value, const std::string& help,
                      std::int64_t low, std::int64_t high) {
  impl_->remember(flag, value);
  impl_->app.add_option(flag, value, help)->check(integer_range(low, high))->group(impl_->heading);
}

void CommandLine::add(const std::string& flag, std::optional<std::int64_t>& value,
                      const std::string& help, std::int64_t low, std::int64_t high) {
  impl_->remember(flag, value);
  impl_->app.add_option(flag, value, help)->check(integer_range(low, high))->group(impl_->heading);
}

void CommandLine::add(const std::string& flag, std::uint64_t& value, const std::string& help) {
  impl_->remember(flag, value);
  impl_->app.add_option(flag, value, help)
      ->check(integer_range(0, std::numeric_limits<std::int64_t>::max()))
      ->group(impl_->heading);
}

void CommandLine::add(const std::string& flag, double& value, const std::string& help, double low,
                      double high) {
  impl_->remember(flag, value);
  impl_->app.add_option(flag, value, help)->check(range(low, high))->group(impl_->heading);
}

void CommandLine::add(const std::string& flag, std::optional<double>& value,
                      const std::string& help, double low, double high) {
  impl_->remember(flag, value);
  impl_->app.add_option(flag, value, help)->check(range(low, high))->group(impl_->heading);
}

void CommandLine::add_size(const std::string& flag, std::string& value, const std::string& help) {
  impl_->remember(flag, value);
  const auto check = [](const std::string& input) -> std::string {
    return input.empty() ? "'' is not a size; write 11GiB, 512MiB or bytes" : "";
  };
  impl_->app.add_option(flag, value, help)->check(CLI::Validator(check, ""))->group(impl_->heading);
}

void CommandLine::add_choice(const std::string& flag, std::string& value, const std::string& help,
                             const std::vector<std::string>& choices) {
  impl_->remember(flag, value);
  const auto check = [choices](std::string& input) -> std::string {
    if (std::ranges::find(choices, input) != choices.end()) return {};
    return fmt::format("'{}' is not one of {}", printable(input), fmt::join(choices, ", "));
  };
  impl_->app.add_option(flag, value, fmt::format("{} ({})", help, fmt::join(choices, "|")))
      ->check(CLI::Validator(check, ""))
      ->group(impl_->heading);
}

void CommandLine::allow_config_file() {
  impl_->app.set_config("--config", "", "Read options from this file; flags win")
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
    arguments.push_back(kebab(argv[i]));  // CLI11 takes from the end
  try {
    impl_->app.parse(arguments);
  } catch (const CLI::Success& done) {
    std::ostringstream text;  // by say(), which of several ranks only one does
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
  } catch (const CLI::ParseError& error) {
    fail(error.what(), ErrorKind::usage);
  }
  const auto extras = impl_->app.remaining();
  if (!extras.empty()) {
    if (extras.front().rfind('-', 0) == 0) impl_->unknown("flag", extras.front());
    fail(fmt::format("unexpected argument '{}'; options begin with --", printable(extras.front())),
         ErrorKind::usage);
  }
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

std::string CommandLine::resolved() const {
  std::string text;
  for (const auto& [flag, read] : impl_->values) {
    const Json value = read();
    if (value.is_null()) continue;  // "" could not be read back
    const std::string written = value.is_string()
                                    ? CLI::detail::convert_arg_for_ini(value.get<std::string>())
                                    : value.dump();
    // CLI11 reads a comment even inside quotes, and knows no escapes: better no value than half of
    // one.
    const bool quotes = written.find('"') != written.npos && value.is_string() &&
                        value.get<std::string>().find('\'') != written.npos;
    const bool readable = written.find_first_of("#\r\n") == written.npos && !quotes;
    text += readable ? fmt::format("{}={}\n", flag, written)
                     : fmt::format("# give as a flag, it cannot stand here: {}={}\n", flag,
                                   value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return text;
}

int run_program(const std::string& name, const std::function<int()>& body,
                const MayReport& may_report) {
  const auto report = [&](std::string message, bool usage = false) {
    if (may_report && !may_report(message, usage)) return;
    end_live_line();
    const std::string word = "error:";
    fmt::print(stderr, "{}: {} {}\n", name,
               has_colours(STDERR_FILENO) ? in_colour(Colour::red, word) : word, message);
  };
  open_standard_streams();
  try {
    return body();
  } catch (const Error& error) {
    report(error.what(), error.kind() == ErrorKind::usage);
    switch (error.kind()) {
      case ErrorKind::runtime:
        return 1;
      case ErrorKind::usage:
        return 2;
      case ErrorKind::numerical:
        return 3;
    }
  } catch (const std::bad_alloc&) {
    report("the system has no memory left; use a smaller model or batch");
  } catch (const std::exception& error) {
    report(error.what());
  }
  return 1;
}

}  // namespace sluice
