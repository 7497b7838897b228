#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// The one table of a program's options: it parses the command line and a --config file (the
/// command line wins), makes --help and --version, and writes the resolved configuration. Bad use
/// is an Error (usage); an unknown flag or key names the one that is meant.
class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& description);
  ~CommandLine();

  /// Options declared from here on stand under this heading in --help.
  void group(const std::string& heading);

  // `flag` is the long kebab-case name with its dashes; the value given beforehand is the default.
  void add(const std::string& flag, std::string& value, const std::string& help);
  /// One value or several, with the flag given once or again. A file has ["a", "b"].
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
  /// Memory, such as 11GiB; "" while it is not given.
  void add_size(const std::string& flag, std::string& value, const std::string& help);
  void add_choice(const std::string& flag, std::string& value, const std::string& help,
                  const std::vector<std::string>& choices);
  /// Adds --config FILE.
  void allow_config_file();
  void require(const std::string& flag);

  /// False when --help or --version was asked for and printed: the program is done.
  bool parse(int argc, const char* const* argv);

  /// Whether it was: with its default value too, or in a file. After parse().
  bool given(const std::string& flag) const;

  /// The flags that were given, each after a space, as a shell reads them; not those of `without`.
  std::string repeated(const std::vector<std::string>& without) const;

  /// Every option with its value, by name with _ for -; null: it has none.
  nlohmann::ordered_json values() const;
  /// The same as a file for --config, without those that have none.
  std::string resolved() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
