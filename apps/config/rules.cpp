#include "apps/config/rules.h"

#include <fmt/format.h>

#include <string_view>

#include "apps/config/rule_words.h"
#include "kernels/base/error.h"

namespace sluice {

std::string rule_words::idle(F f, R rule, const std::string& why, bool even_default) {
  const std::string_view flag = first_given(f.o.given, rule.options, even_default);
  return flag.empty() ? "" : fmt::format("{} {}; leave it out", flag, why);
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
