#include "tests/faults/runs.h"
#include "tests/support/catch.h"

// A run that is stopped after any step and goes on ends with the bytes of one that is not, and so
// does the same run once more, with any number of threads.

namespace sluice::test::exact_test {
namespace {

Flags steps(int count) {
  return {{"--steps", std::to_string(count)}};
}

Flags numbers(int threads, int ranks) {
  return {{"--threads", std::to_string(threads)}, {"--micro-batch", ranks == 4 ? "1" : "2"}};
}

}  // namespace

TEST_CASE("stopped after any step, a run goes on to the same bytes") {
  // Two micro-batches a step and rank; the data's first epoch ends in the middle of step 6.
  std::vector<Kind> with{{"1 rank", 1, {}, true}};
  if (have_mpirun()) {
    with.push_back({"2 ranks", 2, {{"--micro-batch", "1"}}, true});
    if (long_form())
      with.push_back({"4 ranks", 4, {{"--batch-size", "8"}, {"--micro-batch", "1"}}, true});
  }
  for (const Kind& kind : with) {
    FaultRuns runs(kind);
    Tally tally(std::string("h: stopped after each step, ") + kind.name);
    for (int k = 1; k < 8; ++k) {
      // Before the first save, and in the middle of an epoch's last step.
      if (!long_form() && k != 6 && (kind.ranks > 1 || k != 1)) continue;
      const Ended ended = runs.run("parts", {.flags = steps(k)});
      Problems problems;
      problems.require(ended.exit_code == 0, ended.err);
      problems.add(runs.goes_on("parts", steps(8)));
      tally.round("after step " + std::to_string(k), problems.text());
      runs.forget("parts");
    }
  }
}

TEST_CASE("the same run gives the same bytes each time, whatever its threads") {
  std::vector<int> rank_counts{1};
  if (have_mpirun()) {
    rank_counts.push_back(2);
    if (long_form()) rank_counts.push_back(4);
  }
  for (const int ranks : rank_counts) {
    FaultRuns runs({"", ranks, {}, true});
    Tally tally("i: repeats, " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"));
    const Outcome& expected = runs.undisturbed(numbers(1, ranks));
    for (const int threads : {1, 2}) {
      const int repeats = by_form(1, 5);
      for (int repeat = 0; repeat < repeats; ++repeat) {
        const Ended ended = runs.run("again", {.flags = numbers(threads, ranks)});
        Problems problems;
        problems.require(ended.exit_code == 0, ended.err);
        problems.add(difference(outcome(runs.path() / "again"), expected));
        tally.round(std::to_string(threads) + " threads", problems.text());
        runs.forget("again");
      }
    }
  }
}

}  // namespace sluice::test::exact_test
