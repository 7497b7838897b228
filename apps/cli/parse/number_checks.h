#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

// Checks of numbers on the command line. Messages name the allowed range.

/// Parses all of the text; none if it is no whole number from `low` to `high`.
std::optional<std::int64_t> whole_number(const std::string& text, std::int64_t low,
                                         std::int64_t high);
/// Returns why the text is no whole number from `low` to `high`; "" if it is one.
std::string wrong_whole_number(const std::string& text, std::int64_t low, std::int64_t high);
/// The same for a whole number from 0 to 2^64 - 1, such as a seed.
std::string wrong_natural_number(const std::string& text);
/// The same for a real number; NaN is none.
std::string wrong_number(const std::string& text, double low, double high);

}  // namespace sluice
