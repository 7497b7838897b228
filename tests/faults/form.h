#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <string>

#include "tests/support/form.h"

// What the fault suite has in addition to the two forms of all tests (tests/support/form.h):
// chance, and in the long form, which scripts/torture runs, a row for each case.

namespace sluice::test {

struct Draws {
  std::uint64_t seed = 1;  ///< seeds all random draws
  int round = -1;          ///< runs only this sequence of the random walk; -1: all
};

/// What this process draws. main sets it once.
Draws& chosen_draws();

/// Returns the random generator of a round, the same in every run with the same seed.
std::mt19937_64 draws(std::uint64_t round);

/// Counts the rounds of a case and those in which something was lost.
class Tally {
 public:
  explicit Tally(std::string name);
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;
  ~Tally();  ///< prints the row in the long form

  /// `problem` says what was lost or wrong in this round; it is empty if nothing was.
  void round(const std::string& what, const std::string& problem);
  int rounds() const { return rounds_; }

 private:
  std::string name_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int rounds_ = 0, lost_ = 0;
};

/// Collects the problems of a round.
class Problems {
 public:
  void require(bool holds, const std::string& otherwise) {
    if (!holds) add(otherwise);
  }
  void add(const std::string& problem) {
    if (!problem.empty()) text_ += (text_.empty() ? "" : "; ") + problem;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace sluice::test
