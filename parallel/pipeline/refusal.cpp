#include "parallel/pipeline/refusal.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "parallel/pipeline/schedule_text.h"

namespace sluice {
namespace {

constexpr int kinds = 6;
constexpr int around = 4;  // cells shown before an action and after it

std::string row_of(const Schedule& schedule, const Position& place) {
  const auto& row = schedule.ranks[static_cast<std::size_t>(place.rank)];
  const int size = static_cast<int>(row.size());
  const int begin = std::max(place.index - around, 0);
  const int end = std::min(place.index + around + 1, size);
  std::string text = fmt::format("\n  rank {}:{}", place.rank, begin > 0 ? " ..." : "");
  for (int i = begin; i < end; ++i)
    text += fmt::format(" {}{}", i == place.index ? "--> " : "",
                        to_text(Position{place.rank, i}.in(schedule)));
  return text + (end < size ? " ..." : "");
}

}  // namespace

void refuse(const Schedule& schedule, const std::string& sentence,
            const std::vector<Position>& places) {
  std::string text = sentence;
  for (const Position& place : places)
    text += row_of(schedule, place);
  fail(text, ErrorKind::usage);
}

ActionPlaces::ActionPlaces(const Schedule& schedule)
    : messages_(rank_of_stage(schedule)),
      micro_batches_(static_cast<std::size_t>(schedule.micro_batches)),
      indices_(static_cast<std::size_t>(schedule.stages) * micro_batches_ * kinds, -1) {
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      const Position place{static_cast<int>(rank), static_cast<int>(i)};
      int& index = indices_[slot(action)];
      if (index >= 0)
        refuse(schedule, fmt::format("{} is there twice", to_text(action)),
               {{place.rank, index}, place});
      index = place.index;
    }
}

std::size_t ActionPlaces::slot(const Action& action) const {
  const auto stage = static_cast<std::size_t>(action.stage);
  const auto batch = static_cast<std::size_t>(action.micro_batch);
  return (stage * micro_batches_ + batch) * kinds + static_cast<std::size_t>(action.kind);
}

}  // namespace sluice
