#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace sluice {

/// Two neighbouring symbols and the one that takes their place.
struct BpeMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

/// The merges in the order in which they are preferred, and the way from a pair to its rank.
class BpeMerges {
 public:
  BpeMerges() = default;

  /// Adds the least preferred merge so far; false, changing nothing, where the pair has one.
  bool add(const BpeMerge& merge);

  std::optional<std::size_t> rank(std::int32_t left, std::int32_t right) const;
  const BpeMerge& operator[](std::size_t rank) const { return merges_[rank]; }
  std::size_t size() const { return merges_.size(); }
  auto begin() const { return merges_.begin(); }
  auto end() const { return merges_.end(); }

 private:
  std::vector<BpeMerge> merges_;
  std::unordered_map<std::uint64_t, std::size_t> rank_of_pair_;
};

/// Carries merges out: always the most preferred pair that is there, of equal ones the leftmost.
/// A piece of n symbols takes O(n log n). One thread uses it; it keeps its memory between pieces.
class BpeMerger {
 public:
  /// `merges` must outlive this.
  explicit BpeMerger(const BpeMerges& merges) : merges_(merges) {}

  /// Merges symbols[first...] as one piece, in place, shortening `symbols`.
  void merge_tail(std::vector<std::int32_t>& symbols, std::size_t first);

 private:
  /// A pair that could be merged; it is stale once either of its symbols has changed.
  struct Candidate {
    std::size_t rank;
    std::size_t at;  // of the left symbol
    bool operator>(const Candidate& other) const {
      return std::tie(rank, at) > std::tie(other.rank, other.at);
    }
  };
  struct Neighbours {
    std::size_t previous;
    std::size_t next;
  };
  void propose(std::size_t left, std::size_t right);

  const BpeMerges& merges_;
  std::int32_t* piece_ = nullptr;       // the symbols of the piece; merged-away ones are -1
  std::vector<Neighbours> neighbours_;  // of every symbol: the nearest that are left
  std::vector<Candidate> candidates_;   // a heap with the most preferred in front
};

}  // namespace sluice
