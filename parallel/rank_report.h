#pragma once

#include <string>
#include <vector>

#include "parallel/ring_file.h"

namespace sluice {

/// What post_mortem prints of the records of a job, of which there is one at least: its sentence
/// and, with `operations`, a table of every rank's last ones. A terminal may have it: what the
/// files say has passed through printable_line().
std::string rank_report(const std::vector<RankRecord>& records, bool operations);

}  // namespace sluice
