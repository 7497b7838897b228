#include "apps/train/setup.h"

#include <catch2/catch.hpp>

#include "tests/support/training/options.h"

// What flags that nobody gave come to.

namespace sluice::test::setup_test {
namespace {

RateSchedule schedule_of(const std::string& flags) {
  return resolve_shape(parsed("--n-layer 1 --n-head 2 --n-embd 16 --vocab-size 64 --context 16 "
                              "--batch-size 4 --steps 40 --warmup-steps 4 " +
                              flags),
                       false, 0, "test")
      .schedule;
}

}  // namespace

TEST_CASE("a run without --min-lr ends at a tenth of the rate") {
  for (const std::string kind : {"cosine", "linear"}) {
    CAPTURE(kind);
    const auto end = [&](const std::string& flags) {
      return schedule_of("--lr-schedule " + kind + " " + flags).at(40);
    };
    CHECK(end("--lr 0.02") == Approx(0.002).epsilon(1e-12));
    CHECK(end("") == Approx(1e-4).epsilon(1e-12));  // a new model's usual rate is 1e-3
    CHECK(end("--lr 0.02 --min-lr 0.005") == Approx(0.005).epsilon(1e-12));
    CHECK(end("--lr 0.02 --min-lr 0") == Approx(0).margin(1e-12));
  }
}

}  // namespace sluice::test::setup_test
