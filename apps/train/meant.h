#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// What a user means by a name that a program does not know.

/// The name of `known` that `name` means: the one that begins with it, if it is one alone, else the
/// nearest by letters. "" where none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

/// A flag that means what another program calls by another name.
struct FlagMeant {
  std::string flag;  ///< with its dashes; "" if the name is not known
  std::string text;  ///< what to write: the flag, or the flag with a value
  std::string why;   ///< what has to be known beside that, or ""
};

/// `name` is without its dashes and in kebab case. Of several meanings the first counts that names
/// a flag that the program `has`.
FlagMeant flag_meant(std::string_view name, const std::function<bool(const std::string&)>& has);

/// The choice that `value` means: the same in other letters, by the words that other programs have
/// for it, or the nearest. "" where none is near.
std::string choice_meant(const std::string& value, const std::vector<std::string>& choices);

/// All flags that flag_meant can answer.
std::vector<std::string> flags_that_are_meant();

/// In small letters.
std::string lower(std::string text);

}  // namespace sluice
