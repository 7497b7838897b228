#include "optim/space/element_map.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/error.h"

namespace sluice {

void ElementMap::add(std::int64_t begin, std::int64_t end, std::int64_t at) {
  if (begin < end) pieces_.push_back({begin, end, at});
}

void ElementMap::append(std::int64_t begin, std::int64_t end, std::int64_t at) {
  if (!pieces_.empty() && pieces_.back().end == begin &&
      pieces_.back().at + (begin - pieces_.back().begin) == at)
    pieces_.back().end = end;
  else
    add(begin, end, at);
}

std::optional<std::int64_t> ElementMap::find(std::int64_t begin, std::int64_t end) const {
  const auto after = std::ranges::upper_bound(pieces_, begin, {}, &Piece::begin);
  if (after == pieces_.begin() || end > std::prev(after)->end) return std::nullopt;
  return std::prev(after)->at + (begin - std::prev(after)->begin);
}

ElementMap::Places ElementMap::places(std::int64_t begin, std::int64_t end) const {
  Places all;
  auto piece =
      std::ranges::partition_point(pieces_, [&](const Piece& one) { return one.end <= begin; });
  for (; piece != pieces_.end() && piece->begin < end; ++piece) {
    const std::int64_t first = std::max(begin, piece->begin), last = std::min(end, piece->end);
    const std::int64_t at = piece->at + (first - piece->begin);
    if (all.begin == all.end) all = {at, at};
    check(all.end == at, "the places of positions were asked for that lie apart");
    all.end += last - first;
  }
  return all;
}

}  // namespace sluice
