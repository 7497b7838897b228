#pragma once

#include <string>
#include <vector>

#include "parallel/flight_recorder/flight_recorder.h"

namespace sluice {

/// Returns the text that post_mortem prints for the records of a job, of which there must be one at
/// least: a sentence and, with `operations`, a table of every rank's last operations. If
/// `last_words` is not empty, it is the sentence; else post_mortem() makes it. The text is safe to
/// show on a terminal, since all text from the files has passed through printable_line().
std::string rank_report(const std::vector<RankRecord>& records, const std::string& last_words,
                        bool operations);

}  // namespace sluice
