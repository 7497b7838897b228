#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/choice.h"

namespace sluice {

/// The table of a program's options. It parses the command line and a --config file (the command
/// line wins), prints --help and --version, and writes the resolved configuration. Wrong use is an
/// Error (usage); for an unknown flag or key it names the one that is probably meant.
class CommandLine {
 public:
  /// The subject of an option, by which a printed command repeats it or leaves it to the plan.
  enum class Role : std::uint8_t {
    training,
    memory,   ///< a plan of memory decides it
    ranks,    ///< a plan for a cluster decides it
    planning  ///< planning alone
  };

  CommandLine(const std::string& name, const std::string& description);
  ~CommandLine();

  /// Puts the options declared from here on under this heading in --help.
  void group(const std::string& heading);
  /// Gives the options declared from here on this role; at first it is `training`.
  void role(Role role);

  // `flag` is the long kebab-case name with its dashes. The value before the call is the default.
  // An empty value (--flag=, --flag "") is refused, except with add_text().
  void add(const std::string& flag, std::string& value, const std::string& help);
  /// A text that may be empty, such as a prompt.
  void add_text(const std::string& flag, std::string& value, const std::string& help);
  /// A file or folder that the program writes: --help shows OUTPUT beside the flag. At the end of
  /// parse(), `check` is called with a value that is not empty; it throws Error (usage) if
  /// something is there that must not be replaced. See apps/output/output_file.h.
  void add_output(const std::string& flag, std::string& value, const std::string& help,
                  std::function<void(const std::string&)> check);
  /// Takes one or more values; the flag may be given once or repeated. A file holds ["a", "b"].
  void add(const std::string& flag, std::vector<std::string>& values, const std::string& help);
  void add(const std::string& flag, bool& value, const std::string& help);
  void add(const std::string& flag, std::int64_t& value, const std::string& help,
           std::int64_t low = 0, std::int64_t high = std::numeric_limits<std::int64_t>::max());
  void add(const std::string& flag, std::optional<std::int64_t>& value, const std::string& help,
           std::int64_t low = 0, std::int64_t high = std::numeric_limits<std::int64_t>::max());
  void add(const std::string& flag, std::uint64_t& value, const std::string& help);
  void add(const std::string& flag, double& value, const std::string& help, double low,
           double high);
  void add(const std::string& flag, std::optional<double>& value, const std::string& help,
           double low, double high);
  /// A whole number, or auto: none.
  void add_or_auto(const std::string& flag, std::optional<std::int64_t>& value,
                   const std::string& help, std::int64_t low);
  /// A text, or auto: none.
  void add_or_auto(const std::string& flag, std::optional<std::string>& value,
                   const std::string& help);
  /// A size in bytes, such as 11GiB; see parse_bytes.
  void add_size(const std::string& flag, std::optional<std::size_t>& value, const std::string& help,
                std::size_t least = std::size_t{1} << 20);
  /// One of some words.
  void add_choice(const std::string& flag, std::string& value, const std::string& help,
                  const std::vector<std::string>& choices);
  template <class T, std::size_t N>
  void add_choice(const std::string& flag, T& value, const std::string& help,
                  const Choices<T, N>& choices) {
    add_word(
        flag, help, names_of(choices),
        [&value, choices](const std::string& name) { value = value_in(choices, name); },
        [&value, choices] { return std::string(name_in(choices, value)); });
  }
  /// The same, or auto: none.
  template <class T, std::size_t N>
  void add_choice(const std::string& flag, std::optional<T>& value, const std::string& help,
                  const Choices<T, N>& choices) {
    std::vector<std::string> names = names_of(choices);
    names.insert(names.begin(), "auto");
    add_word(
        flag, help, names,
        [&value, choices](const std::string& name) {
          value = name == "auto" ? std::nullopt : std::optional<T>(value_in(choices, name));
        },
        [&value, choices] { return value ? std::string(name_in(choices, *value)) : ""; }, "auto");
  }
  /// An option that `write` parses from text; it throws Error (usage) for wrong text. `read`
  /// returns the text of the value, or "" for none, which --help shows as `none`.
  void add_parsed(const std::string& flag, const std::string& help,
                  std::function<void(const std::string&)> write, std::function<std::string()> read,
                  const std::string& none = "");
  /// The same for text that is one of `words`.
  void add_word(const std::string& flag, const std::string& help,
                const std::vector<std::string>& words,
                std::function<void(const std::string&)> write, std::function<std::string()> read,
                const std::string& none = "");
  /// Adds --config FILE.
  void allow_config_file();
  void require(const std::string& flag);

  /// Returns false if --help or --version was asked for and printed: the program is done.
  bool parse(int argc, const char* const* argv);

  /// Returns true if the flag was given, even with its default or in a file. Call after parse().
  bool given(const std::string& flag) const;

  /// Returns the given flags of these roles, quoted for a shell, each after a space.
  std::string repeated(const std::vector<Role>& roles) const;

  /// Returns every option's value by name, with _ in place of -; null for an option without one.
  nlohmann::ordered_json values() const;
  /// Returns the same values as a --config file, without the options that have no value.
  std::string resolved() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
