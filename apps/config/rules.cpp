#include "apps/config/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "apps/config/rule_words.h"
#include "kernels/base/error.h"

namespace sluice {

std::string rule_words::idle(F f, R rule, const std::string& why, bool even_default) {
  const auto& given = even_default ? f.o.given.all : f.o.given.changed;
  std::string_view options = rule.options;
  while (!options.empty()) {
    const std::string_view one = options.substr(0, options.find(' '));
    options.remove_prefix(std::min(one.size() + 1, options.size()));
    if (std::ranges::find(given, one) != given.end())
      return fmt::format("{} {}; leave it out", one, why);
  }
  return "";
}

std::vector<Rule> rules() {
  std::vector<Rule> all(option_rules().begin(), option_rules().end());
  all.insert(all.end(), run_rules().begin(), run_rules().end());
  return all;
}

void require_rules(const RunFacts& facts, Known known) {
  for (const Rule& rule : known == Known::options ? option_rules() : run_rules()) {
    if (rule.from != known) continue;
    if (const std::string why = rule.broken(facts, rule); !why.empty()) fail(why, ErrorKind::usage);
  }
}

}  // namespace sluice
