#include "apps/cli/parse/number_checks.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "engine/io/json_document.h"

namespace sluice {
namespace {

std::string number(double value) {
  return fmt::format("{:.8g}", value);
}

}  // namespace

// CLI11's own conversion silently saturates.
std::optional<std::int64_t> whole_number(const std::string& text, std::int64_t low,
                                         std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= low && value <= high ? std::optional(value) : std::nullopt;
}

std::string wrong_whole_number(const std::string& text, std::int64_t low, std::int64_t high) {
  if (whole_number(text, low, high)) return {};
  if (high == std::numeric_limits<std::int64_t>::max())
    return fmt::format("'{}' is not a whole number of at least {}", excerpt(text), low);
  return fmt::format("'{}' is not a whole number from {} to {}", excerpt(text), low, high);
}

std::string wrong_natural_number(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return fmt::format("'{}' is not a whole number from 0 to {}", excerpt(text),
                     std::numeric_limits<std::uint64_t>::max());
}

std::string wrong_number(const std::string& text, double low, double high) {
  // CLI11 2.6 takes commas for separators of digits.
  double value = 0;
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(begin, last, value);
  if (error == std::errc() && end == last && value >= low && value <= high) return {};
  const bool open = high == std::numeric_limits<double>::max();
  return fmt::format("'{}' is not a number {}{}", excerpt(text),
                     open ? fmt::format("of at least {}", number(low))
                          : fmt::format("from {} to {}", number(low), number(high)),
                     text.find(',') != std::string::npos ? "; write 0.5, not 0,5" : "");
}

}  // namespace sluice
