#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/command_line.h"

namespace sluice {

/// The flags of a command line and of its --config file.
struct GivenFlags {
  std::vector<std::string> all;
  std::vector<std::string> changed;  ///< with another value than the default
};

/// `defaults`: line.values() from before parse().
GivenFlags given_flags(const CommandLine& line, const nlohmann::ordered_json& defaults);

/// A rule: in some case these flags change nothing.
struct NoEffect {
  bool holds;              ///< the case
  std::string_view flags;  ///< with spaces between them
  std::string why;         ///< it follows the flag: "is for JSON Lines, and a.txt is plain text"
  /// Also a flag that repeats its default is refused: what it says is not what happens.
  bool even_default = false;
};

/// Returns the first of `flags`, which have spaces between them, that was given; "" if none was.
std::string_view first_given(const GivenFlags& given, std::string_view flags, bool even_default);

/// Throws Error (usage) for the first flag given that has no effect by one of the rules: nothing
/// that a user asks for is dropped in silence.
void refuse_without_effect(const GivenFlags& given, const std::vector<NoEffect>& rules);

}  // namespace sluice
