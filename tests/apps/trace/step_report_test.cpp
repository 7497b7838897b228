#include "apps/trace/step_report.h"
#include "tests/support/catch.h"

#include <nlohmann/json.hpp>

// Tests the sums of a step's spans.

namespace sluice::test::step_report_test {
namespace {

using Lane = Timeline::Lane;

}  // namespace

TEST_CASE("what interrupts a pass is no part of it", "[report]") {
  const std::vector<Timeline::Span> spans{
      {"forward", Lane::compute, 0, 10},   {"stall", Lane::compute, 1, 1},
      {"update", Lane::compute, 2, 2},     {"backward", Lane::compute, 10, 20},
      {"stall", Lane::compute, 12, 4},     {"forward", Lane::compute, 30, 10},
      {"stall", Lane::compute, 39, 0.5},   {"update", Lane::compute, 50, 8},
      {"fetch", Lane::to_device, 0, 11},   {"drain", Lane::to_host, 3, 5},
      {"take up", Lane::to_device, 15, 2}, {"put down", Lane::to_host, 5, 1},
      {"cpu update", Lane::host, 4, 3},    {"cpu update", Lane::host, 32, 4}};
  const StepReport report = report_of(spans, {.to_device = 7, .to_host = 9});
  CHECK(report.forward == 20 - 1 - 2 - 0.5);
  CHECK(report.backward == 20 - 4);
  CHECK(report.update == 2 + 8);
  CHECK(report.cpu_update == 3 + 4);
  CHECK(report.stall == 5.5);
  CHECK(report.transfer == 13);
  CHECK(report.overlap() == Approx(1 - 5.5 / 13));
  CHECK(report.moved.to_device == 7);
  CHECK(report.moved.to_host == 9);
}

TEST_CASE("an update under the backward pass is no part of it, and its undoing is told",
          "[report]") {
  StepReport report = report_of({{"backward", Lane::compute, 0, 20},
                                 {"stall", Lane::compute, 5, 1},
                                 {"update", Lane::compute, 6, 3}},
                                {});
  CHECK(report.backward == 20 - 1 - 3);
  CHECK_FALSE(fields_of(report).contains("taken_back"));
  for (const bool undone : {false, true}) {
    report.taken_back = undone;
    CHECK(fields_of(report).at("taken_back") == undone);
  }
}

TEST_CASE("a line of a step has what took time", "[report]") {
  StepReport report = report_of({{"forward", Lane::compute, 0, 10}}, {});
  CHECK(spell(report) == "forward 10.0 ms");
  report.wait = 2.5;
  CHECK(spell(report) == "forward 10.0 ms, waiting for ranks 2.5");
}

}  // namespace sluice::test::step_report_test
