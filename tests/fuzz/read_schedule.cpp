#include "kernels/base/error.h"
#include "parallel/pipeline/schedule_text.h"
#include "parallel/pipeline/simulator.h"
#include "parallel/pipeline/validator.h"
#include "tests/fuzz/harness.h"

namespace sluice::fuzz {
namespace {

/// The sentence; below it a refusal of a schedule shows rows of it, one a line.
void require_rows_below(std::string message) {
  for (int rows = 0;; ++rows) {
    const auto line = message.rfind("\n  rank ");
    if (line == message.npos) break;
    require(rows < 8, "a refusal of a schedule that shows more than 8 rows of it");
    require_showable(message.substr(line + 1));
    message.resize(line);
  }
  require_showable(message);
}

}  // namespace

void read_schedule(Bytes input) {
  const Schedule schedule = schedule_from_csv(input);
  require(schedule_from_csv(to_csv(schedule)) == schedule, "a schedule differs once written");
  try {
    const Schedule lowered = has_messages(schedule) ? schedule : lower(schedule);
    const ScheduleFacts facts = validate(lowered);
    require(facts.live.size() == schedule.ranks.size(), "facts of another number of ranks");
    to_grid(lowered);  // what was found valid can run
  } catch (const Error& error) {
    require_rows_below(error.what());
    fail("the schedule is not valid", error.kind());
  }
}

}  // namespace sluice::fuzz
