#pragma once

#include <string>
#include <vector>

#include "parallel/flight_recorder/flight_recorder.h"

namespace sluice {

/// Returns the text that post_mortem prints for the records of a job, of which there must be one at
/// least: a sentence and, with `operations`, a table of every rank's last operations. `last_words`:
/// what a rank reported when the job ended, and the sentence; if empty, it is that of
/// post_mortem(). The text is safe to show on a terminal, since all text from the files has passed
/// through printable_line().
std::string rank_report(const std::vector<RankRecord>& records, const std::string& last_words,
                        bool operations);

}  // namespace sluice
