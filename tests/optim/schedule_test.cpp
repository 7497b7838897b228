#include "optim/schedule.h"
#include "tests/support/catch.h"

#include <cmath>

namespace sluice::test::schedule_test {

TEST_CASE("schedules give the rates of their formulas", "[optimizer]") {
  const auto at = [](ScheduleKind kind, std::int64_t warmup, std::int64_t updates, std::int64_t k) {
    return RateSchedule{kind, 8.0, 2.0, warmup, updates}.at(k);
  };
  using enum ScheduleKind;
  for (const auto kind : {constant, cosine, linear}) {
    CHECK(at(kind, 4, 12, 0) == 2);  // lr * (k+1) / W
    CHECK(at(kind, 4, 12, 2) == 6);
    CHECK(at(kind, 4, 12, 3) == 8);
    CHECK(at(kind, 4, 12, 4) == 8);  // r = 0
    CHECK(at(kind, 0, 12, 0) == 8);
  }
  for (const std::int64_t k : {5, 8, 11, 12, 99})
    CHECK(at(constant, 4, 12, k) == 8);
  CHECK(at(linear, 4, 12, 8) == Approx(5));
  CHECK(at(linear, 4, 12, 11) == Approx(8 - 6 * 7.0 / 8));
  CHECK(at(linear, 4, 12, 12) == Approx(2));
  CHECK(at(cosine, 4, 12, 6) == Approx(2 + 3 * (1 + std::sqrt(0.5))));
  CHECK(at(cosine, 4, 12, 8) == Approx(5));
  CHECK(at(cosine, 4, 12, 11) == Approx(2 + 3 * (1 + std::cos(M_PI * 7 / 8))));
  CHECK(at(cosine, 4, 12, 12) == Approx(2));
  CHECK(at(cosine, 0, 0, 0) == 8);  // max(1, N - W)
  // Beyond the last update (a run that was prolonged) the rate has to stay where it ended.
  for (const std::int64_t k : {13, 20, 1000}) {
    CHECK(at(linear, 4, 12, k) == Approx(2));
    CHECK(at(cosine, 4, 12, k) == Approx(2));
  }
}

}  // namespace sluice::test::schedule_test
