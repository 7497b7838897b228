#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/schedule_text.h"

namespace sluice::test {

using NamedSchedules = std::vector<std::pair<std::string, Schedule>>;

/// Every kind of schedule, interleaved with one virtual stage up to four.
inline NamedSchedules all_schedules(int ranks, int micro_batches) {
  NamedSchedules all{{"layer_split", layer_split(ranks, micro_batches)},
                     {"gpipe", gpipe(ranks, micro_batches)},
                     {"1f1b", one_forward_one_backward(ranks, micro_batches)},
                     {"zb-h1", zero_bubble_h1(ranks, micro_batches)}};
  for (int v = 1; v <= 4; ++v)
    all.emplace_back("interleaved " + std::to_string(v), interleaved(ranks, v, micro_batches));
  if (ranks == 1) all.emplace_back("layer-major", layer_major(5, micro_batches));
  return all;
}

/// Returns the schedule as CSV, with | for the row ends.
inline std::string rows_of(const Schedule& schedule) {
  std::string text = to_csv(schedule);
  std::replace(text.begin(), text.end(), '\n', '|');
  return text;
}

}  // namespace sluice::test
