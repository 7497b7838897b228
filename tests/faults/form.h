#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <string>

// How much of the fault suite a run of it does. ctest runs the short form; scripts/torture the long
// one, which also prints a row for each case.

namespace sluice::test {

struct Form {
  bool full = false;       ///< the long form
  std::uint64_t seed = 1;  ///< of everything that is drawn
  int round = -1;          ///< of the random walk this sequence alone; -1: all
};

/// Set once, by main.
Form& form();

/// One of the two, by the form.
template <class T>
T by_form(T in_short, T in_long) {
  return form().full ? in_long : in_short;
}

/// What a round draws, the same in every run with the same seed.
std::mt19937_64 draws(std::uint64_t round);

/// Counts the rounds of a case and those in which something was lost.
class Tally {
 public:
  explicit Tally(std::string name);
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;
  ~Tally();  ///< in the long form: prints the row

  /// `problem` says what was lost or wrong in this round; it is empty where all is well.
  void round(const std::string& what, const std::string& problem);
  int rounds() const { return rounds_; }

 private:
  std::string name_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int rounds_ = 0, lost_ = 0;
};

/// Says why a case is left out, in the words that scripts/test and scripts/torture count.
void skip(const std::string& why);

/// Collects what is wrong in a round.
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
