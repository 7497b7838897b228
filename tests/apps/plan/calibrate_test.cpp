#include "apps/plan/cost/calibrate.h"
#include "tests/support/catch.h"

// The rate of matrix products on machines whose speeds are a billion apart. Time here is what the
// imagined machine says; no clock is read.

namespace sluice::test::calibrate_test {
namespace {

const std::vector<double> operations{1e6, 8e6, 64e6, 512e6, 4096e6};

/// A machine that does `rate` operations a second, and takes three times as long at first.
struct Machine {
  double rate;
  double wait = 0;   ///< seconds before each product, in which other programs have the processor
  double spent = 0;  ///< seconds
  std::vector<std::size_t> sizes{};

  double measured() {
    return largest_rate(operations, [&](std::size_t size) {
      const bool first = sizes.empty() || sizes.back() != size;
      sizes.push_back(size);
      const double seconds = (first ? 3 : 1) * operations[size] / rate + wait;
      spent += seconds;
      return seconds;
    });
  }
};

TEST_CASE("the rate of products is measured in little time on machines of any speed") {
  for (double rate = 1e8; rate < 1e17; rate *= 3) {
    INFO(rate);
    Machine machine{rate};
    CHECK(machine.measured() == Approx(rate));
    CHECK(machine.spent < 0.35);
    CHECK(machine.sizes.size() < 16);
  }
}

TEST_CASE("time in which other programs have the processor is not taken for slow products") {
  for (const double wait : {0.003, 0.012, 0.03})
    for (double rate = 1e9; rate < 1e11; rate *= 3) {
      INFO(rate << " " << wait);
      Machine machine{.rate = rate, .wait = wait};
      CHECK(machine.measured() > 0.2 * rate);
      CHECK(machine.measured() <= 1.001 * rate);
      CHECK(machine.spent < 5);
    }
}

TEST_CASE("nothing is tried after a smallest product of more than 50 ms") {
  Machine machine{1e6};
  CHECK(machine.measured() == Approx(1e6));
  CHECK(machine.sizes == std::vector<std::size_t>{0, 0});
}

TEST_CASE("a fast machine is measured with the largest product, a slow one with a smaller") {
  Machine fast{1e15}, slow{2e9};
  fast.measured();
  slow.measured();
  CHECK(fast.sizes.back() == 4);
  CHECK(slow.sizes.back() == 1);  // 8e6 / 2e9 = 4 ms; the next smaller takes 0.5 ms
}

TEST_CASE("a clock that does not advance gives a rate that is finite") {
  CHECK(largest_rate(operations, [](std::size_t) { return 0.0; }) < 1e20);
}

}  // namespace
}  // namespace sluice::test::calibrate_test
