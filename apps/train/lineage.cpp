#include "apps/train/lineage.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace sluice {

bool Lineage::holds(std::int64_t save) const {
  return std::ranges::any_of(stretches_, [&](const Stretch& stretch) {
    return stretch.first <= save && save <= stretch.last;
  });
}

bool Lineage::forks_at(std::int64_t save) const {
  return std::any_of(stretches_.begin(), stretches_.end() - (stretches_.empty() ? 0 : 1),
                     [&](const Stretch& stretch) { return stretch.last == save; });
}

void Lineage::add(std::int64_t save, bool new_stretch) {
  if (new_stretch || stretches_.empty() || stretches_.back().last + 1 != save)
    stretches_.push_back({save, save});
  else
    stretches_.back().last = save;
}

nlohmann::json Lineage::to_json() const {
  nlohmann::json json = nlohmann::json::array();
  for (const Stretch& stretch : stretches_)
    json.push_back({stretch.first, stretch.last});
  return json;
}

Lineage Lineage::from_json(const nlohmann::json& json) {
  constexpr std::int64_t most = std::int64_t{1} << 62;
  Lineage lineage;
  std::int64_t before = 0;
  for (const auto& pair : json.get_ref<const nlohmann::json::array_t&>()) {
    // Numbers beyond 63 bits would become negative, fractions would be cut.
    if (pair.size() != 2 || !pair.at(0).is_number_integer() || !pair.at(1).is_number_integer())
      throw std::out_of_range("a stretch is not two whole numbers");
    const Stretch stretch{pair.at(0).get<std::int64_t>(), pair.at(1).get<std::int64_t>()};
    if (stretch.first <= before || stretch.last < stretch.first || stretch.last > most)
      throw std::out_of_range("the numbers of saves do not increase");
    before = stretch.last;
    lineage.stretches_.push_back(stretch);
  }
  return lineage;
}

}  // namespace sluice
