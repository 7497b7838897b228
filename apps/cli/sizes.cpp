#include "apps/cli/sizes.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "apps/cli/parse/meant.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr double tebi = 1099511627776.0;
constexpr Unit units[] = {{"", 1},        {"b", 1},         {"k", 1 << 10}, {"kib", 1 << 10},
                          {"m", 1 << 20}, {"mib", 1 << 20}, {"g", 1 << 30}, {"gib", 1 << 30},
                          {"t", tebi},    {"tib", tebi},    {"kb", 1e3},    {"mb", 1e6},
                          {"gb", 1e9},    {"tb", 1e12}};

}  // namespace

std::size_t parse_bytes(const std::string& flag, const std::string& text, std::size_t least) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit = lower({end, static_cast<std::size_t>(text.data() + text.size() - end)});
  if (unit.size() > 1 && unit[0] == ' ') unit.erase(0, 1);
  for (const Unit& known : units) {
    if (error != std::errc() || unit != known.name) continue;
    const double bytes = number * known.bytes;
    // More than 2^50 bytes must be a mistake, since no machine has as much.
    if (std::isfinite(bytes) && bytes >= static_cast<double>(least) && bytes <= 0x1p50)
      return static_cast<std::size_t>(bytes);
    fail(fmt::format("{} {}: it must be from {} to 1024TiB, such as 8GiB or 512MiB", flag,
                     excerpt(text), spell_bytes(least)),
         ErrorKind::usage);
  }
  fail(fmt::format("{}: '{}' is not a size; write 8GiB (or 8G), 512MiB (or 512M), 8GB (of 1000^3 "
                   "bytes), or a number of bytes",
                   flag, excerpt(text)),
       ErrorKind::usage);
}

std::string spell_bytes(std::size_t bytes) {
  for (const auto& [name, shift] :
       {std::pair("TiB", 40), std::pair("GiB", 30), std::pair("MiB", 20), std::pair("KiB", 10)})
    if (bytes % (std::size_t{1} << shift) == 0 && bytes > 0)
      return fmt::format("{}{}", bytes >> shift, name);
  return fmt::format("{}", bytes);
}

}  // namespace sluice
