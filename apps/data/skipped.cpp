#include "apps/data/skipped.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

void Skipped::add(const Reason& reason) {
  const auto known = std::ranges::find(reasons_, reason.one, &Reason::one);
  if (known == reasons_.end())
    reasons_.push_back(reason);
  else
    known->count += reason.count;
}

void Skipped::add(const std::string& one, const std::string& many, const std::string& name) {
  add({one, many, name, 1});
}

void Skipped::add(const Skipped& others) {
  for (const Reason& reason : others.reasons_)
    add(reason);
}

std::string Skipped::text() const {
  std::string all;
  for (const Reason& reason : reasons_)
    all += fmt::format("{}{} {} ({}{})", all.empty() ? "" : ", ", reason.count,
                       reason.count == 1 ? reason.one : reason.many,
                       reason.count == 1 ? "" : "first: ", reason.first);
  return all;
}

}  // namespace sluice
