#include "apps/checkpoint/lineage.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace sluice {

bool Lineage::holds(std::int64_t save) const {
  return std::ranges::any_of(stretches_, [&](const Stretch& stretch) {
    return stretch.first <= save && save <= stretch.last;
  });
}

bool Lineage::named(std::int64_t save) const {
  return std::ranges::find(named_, save) != named_.end();
}

void Lineage::name(std::int64_t save) {
  if (holds(save) && !named(save)) named_.push_back(save);
}

void Lineage::add(std::int64_t save) {
  if (stretches_.empty() || stretches_.back().last + 1 != save)
    stretches_.push_back({save, save});
  else
    stretches_.back().last = save;
}

nlohmann::json Lineage::to_json() const {
  nlohmann::json saves = nlohmann::json::array();
  for (const Stretch& stretch : stretches_)
    saves.push_back({stretch.first, stretch.last});
  return {{"saves", saves}, {"named", named_}};
}

Lineage Lineage::from_json(const nlohmann::json& json) {
  constexpr std::int64_t most = std::int64_t{1} << 62;
  // Rejects numbers beyond 63 bits, which would become negative, and fractions, which would be cut.
  const auto number = [](const nlohmann::json& value) {
    if (!value.is_number_integer()) throw std::out_of_range("a save is not a whole number");
    return value.get<std::int64_t>();
  };
  Lineage lineage;
  std::int64_t before = 0;
  for (const auto& pair : json.at("saves").get_ref<const nlohmann::json::array_t&>()) {
    if (pair.size() != 2) throw std::out_of_range("a stretch is not two saves");
    const Stretch stretch{number(pair.at(0)), number(pair.at(1))};
    if (stretch.first <= before || stretch.last < stretch.first || stretch.last > most)
      throw std::out_of_range("the numbers of saves do not increase");
    before = stretch.last;
    lineage.stretches_.push_back(stretch);
  }
  for (const auto& save : json.at("named").get_ref<const nlohmann::json::array_t&>())
    if (!lineage.holds(lineage.named_.emplace_back(number(save))))
      throw std::out_of_range("a save that --resume has named is none of its saves");
  return lineage;
}

}  // namespace sluice
