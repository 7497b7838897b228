#pragma once

#include <cstdint>
#include <functional>
#include <utility>

namespace sluice {

/// Divides a text between ranks that all read it: rank 0 encodes the first megabyte, rank 1 the
/// next, and so on. A round ends when each has had its turn. By default a rank is alone and has all
/// turns.
class Turns {
 public:
  static constexpr std::uint64_t turn_bytes = 1 << 20;

  Turns() = default;
  /// `end_of_round` is called on all ranks, for each round that is complete.
  Turns(int rank, int size, std::function<void()> end_of_round)
      : rank_(rank), size_(size), end_of_round_(std::move(end_of_round)) {}

  /// Returns true if this rank encodes what comes next.
  bool mine() const { return at_ == rank_; }
  /// Goes on behind a piece of text, whoever encoded it. A turn ends with a piece.
  void advance(std::uint64_t bytes) {
    done_ += bytes;
    if (size_ == 1 || done_ < turn_bytes) return;
    done_ = 0;
    at_ = (at_ + 1) % size_;
    if (at_ == 0) end_of_round_();
  }

 private:
  int rank_ = 0, size_ = 1, at_ = 0;
  std::uint64_t done_ = 0;  ///< bytes of the current turn
  std::function<void()> end_of_round_;
};

}  // namespace sluice
