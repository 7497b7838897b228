#include "tests/faults/form.h"
#include "tests/support/catch.h"

#include <fmt/format.h>

#include <cstdio>

namespace sluice::test {

Draws& chosen_draws() {
  static Draws only;
  return only;
}

std::mt19937_64 draws(std::uint64_t round) {
  std::seed_seq seed{chosen_draws().seed, round};
  return std::mt19937_64(seed);
}

Tally::Tally(std::string name) : name_(std::move(name)) {}

Tally::~Tally() {
  if (!long_form()) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  fmt::print("row\t{}\t{}\t{}\t{:.0f}\n", name_, rounds_, lost_, seconds.count());
  static_cast<void>(std::fflush(stdout));
}

void Tally::round(const std::string& what, const std::string& problem) {
  ++rounds_;
  lost_ += problem.empty() ? 0 : 1;
  INFO(name_ << ": " << what);
  CHECK(problem == "");
}

}  // namespace sluice::test
