#include "apps/report/step_printer.h"

#include <unistd.h>

#include "apps/cli/progress.h"
#include "tests/support/catch.h"
#include "tests/support/process/redirected.h"

// The numbers in what a run prints. How lines look on a terminal is tested elsewhere.

namespace sluice::test::step_printer_test {

TEST_CASE("the time left is that of the steps left, each as long as this start's") {
  // A run of 100 steps that goes on from step 90. What came before took a time that nobody knows.
  StepPrinter printer({.first_step = 90, .steps = 100, .log_every = 1});
  const auto step = [&](std::int64_t number, double milliseconds) {
    return written_to(STDOUT_FILENO,
                      [&] { printer.step({.step = number, .milliseconds = milliseconds}); });
  };
  CHECK_THAT(step(91, 3000), Contains("| eta 27s"));  // 9 of 3 s
  CHECK_THAT(step(92, 5000), Contains("| eta 32s"));  // 8 of 4 s
  CHECK_THAT(step(100, 2000), Contains("| eta 0s"));
}

TEST_CASE("durations, counts and sizes are printed in units that people read") {
  CHECK(format_duration(0) == "0s");
  CHECK(format_duration(-5) == "0s");
  CHECK(format_duration(12.4) == "12s");
  CHECK(format_duration(59.6) == "1m00s");
  CHECK(format_duration(245) == "4m05s");
  CHECK(format_duration(3599) == "59m59s");
  CHECK(format_duration(5820) == "1h37m");
  CHECK(format_duration(90000 + 59) == "25h00m");
  CHECK(format_count(0) == "0");
  CHECK(format_count(950) == "950");
  CHECK(format_count(9999) == "9999");
  CHECK(format_count(312000) == "312.0k");
  CHECK(format_count(1'684'000) == "1.68M");
  CHECK(format_count(2.5e9) == "2.50G");
  CHECK(format_bytes(std::size_t{512} << 20) == "512 MiB");
  CHECK(format_bytes(std::size_t{11} << 30) == "11.00 GiB");
}

}  // namespace sluice::test::step_printer_test
