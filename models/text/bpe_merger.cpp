#include "models/text/bpe_merger.h"

#include <algorithm>
#include <functional>

namespace sluice {
namespace {

constexpr std::int32_t gone = -1;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

bool BpeMerges::add(const BpeMerge& merge) {
  if (!rank_of_pair_.try_emplace(pair_key(merge.left, merge.right), merges_.size()).second)
    return false;
  merges_.push_back(merge);
  return true;
}

std::optional<std::size_t> BpeMerges::rank(std::int32_t left, std::int32_t right) const {
  const auto found = rank_of_pair_.find(pair_key(left, right));
  if (found == rank_of_pair_.end()) return std::nullopt;
  return found->second;
}

void BpeMerger::propose(std::size_t left, std::size_t right) {
  const auto rank = merges_.rank(piece_[left], piece_[right]);
  if (!rank) return;
  candidates_.push_back({*rank, left});
  std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
}

void BpeMerger::merge_tail(std::vector<std::int32_t>& symbols, std::size_t first) {
  const std::size_t count = symbols.size() - first;
  if (count < 2) return;
  piece_ = symbols.data() + first;

  // `count` stands for "none" at either end.
  neighbours_.resize(count);
  for (std::size_t at = 0; at < count; ++at)
    neighbours_[at] = {at == 0 ? count : at - 1, at + 1};
  for (std::size_t at = 0; at + 1 < count; ++at)
    propose(at, at + 1);

  while (!candidates_.empty()) {
    const auto [rank, at] = candidates_.front();
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    candidates_.pop_back();

    const BpeMerge& merge = merges_[rank];
    const std::size_t right = neighbours_[at].next;
    if (piece_[at] != merge.left || right == count || piece_[right] != merge.right) continue;
    piece_[at] = merge.result;
    piece_[right] = gone;

    const std::size_t next = neighbours_[at].next = neighbours_[right].next;
    if (next != count) {
      neighbours_[next].previous = at;
      propose(at, next);
    }
    const std::size_t previous = neighbours_[at].previous;
    if (previous != count) propose(previous, at);
  }
  symbols.erase(
      std::remove(symbols.end() - static_cast<std::ptrdiff_t>(count), symbols.end(), gone),
      symbols.end());
}

}  // namespace sluice
