#include "apps/flags/no_effect.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ranges>

#include "kernels/base/error.h"

namespace sluice {

GivenFlags given_flags(const CommandLine& line, const nlohmann::ordered_json& defaults) {
  GivenFlags flags;
  const nlohmann::ordered_json values = line.values();
  for (const auto& [name, value] : values.items()) {
    std::string flag = "--" + name;
    std::ranges::replace(flag, '_', '-');
    if (!line.given(flag)) continue;
    flags.all.push_back(flag);
    if (value != defaults.at(name)) flags.changed.push_back(flag);
  }
  return flags;
}

std::string_view first_given(const GivenFlags& given, std::string_view flags, bool even_default) {
  const auto& among = even_default ? given.all : given.changed;
  for (const auto word : std::views::split(flags, ' ')) {
    const std::string_view flag(word.begin(), word.end());
    if (std::ranges::find(among, flag) != among.end()) return flag;
  }
  return "";
}

void refuse_without_effect(const GivenFlags& given, const std::vector<NoEffect>& rules) {
  for (const NoEffect& rule : rules) {
    if (!rule.holds) continue;
    if (const auto flag = first_given(given, rule.flags, rule.even_default); !flag.empty())
      fail(fmt::format("{} {}; leave it out", flag, rule.why), ErrorKind::usage);
  }
}

}  // namespace sluice
