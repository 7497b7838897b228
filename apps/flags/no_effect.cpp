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

void refuse_without_effect(const GivenFlags& given, const std::vector<NoEffect>& rules) {
  for (const NoEffect& rule : rules) {
    if (!rule.holds) continue;
    for (const auto word : std::views::split(rule.flags, ' ')) {
      const std::string_view flag(word.begin(), word.end());
      const auto& flags = rule.even_default ? given.all : given.changed;
      if (std::ranges::find(flags, flag) != flags.end())
        fail(fmt::format("{} {}; leave it out", flag, rule.why), ErrorKind::usage);
    }
  }
}

}  // namespace sluice
