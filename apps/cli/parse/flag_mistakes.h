#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace sluice {

// Mistakes in the flags of a command, which CLI11 overlooks or words for programmers. All are Error
// (usage).

/// Asks the option's own checks about an empty value, which CLI11 2.6 does not.
void check_empty_value(CLI::Option& option, const std::string& flag);

/// Replaces _ by - in the name of a flag, so that --n_layer is accepted for --n-layer.
std::string kebab(std::string argument);

/// Returns the arguments in the form in which CLI11 reads them as they are meant. It takes the next
/// word for the value of --flag=, so that is made two arguments, of which the second is empty.
std::vector<std::string> as_meant(const CLI::App& app, const std::vector<std::string>& arguments);

/// CLI11 takes whatever follows a flag as its value, so --resume --output would be one.
void refuse_flags_as_values(CLI::App& app, const std::vector<std::string>& arguments);

/// Reports an unknown flag, if there is one.
void refuse_extras(const CLI::App& app);

/// Reports a name that no option has, with the one that is probably meant. `what`: "flag".
[[noreturn]] void refuse_name(const CLI::App& app, const std::string& what,
                              const std::string& name);

/// Returns a help text, cut to what fits into an error.
std::string brief(const std::string& help);

/// Returns the help text of the option whose name begins CLI11's message.
std::string help_of(const CLI::App& app, const std::string& message);

/// CLI11 says "Could not convert: --flag = perhaps", with all of the value.
[[noreturn]] void refuse_value(const CLI::App& app, const std::string& message);

/// CLI11 says "--lr: 1 required FLOAT missing" and "--lr: At Most 1 required but received 2".
[[noreturn]] void refuse_count(const CLI::App& app, const std::string& message);

}  // namespace sluice
