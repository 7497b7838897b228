#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Guesses which name a user means by one that a program does not know.

/// Returns the entry of `known` that `name` means: the only one that begins with it, else the
/// nearest by edit distance. Returns "" if none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

/// The flag that corresponds to another program's name for it.
struct FlagMeant {
  std::string flag;  ///< the flag with its dashes; "" if the name is not known
  std::string text;  ///< the text to write: the flag, or the flag with a value
  std::string why;   ///< anything else the user has to know, or ""
};

/// Looks up `name`, in kebab case without dashes. Returns its first meaning whose flag the program
/// `has`.
FlagMeant flag_meant(std::string_view name, const std::function<bool(const std::string&)>& has);

/// Returns the choice that `value` means: the same but for case, a synonym that other programs use,
/// or the nearest. Returns "" if none is near.
std::string choice_meant(const std::string& value, const std::vector<std::string>& choices);

/// Returns all flags that flag_meant can return.
std::vector<std::string> flags_that_are_meant();

/// Returns the text with ASCII letters in lower case.
std::string lower(std::string text);

}  // namespace sluice
