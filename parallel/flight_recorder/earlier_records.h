#pragma once

#include <filesystem>

namespace sluice {

/// Moves what an earlier job has left in a folder for records into its new folder `earlier-N`, so
/// that a job that is started again, such as one that Slurm queues again, has an empty folder.
/// Returns the new folder; an empty path if there were no records.
/// Throws Error (usage) if a rank of that job still runs, or if it is on another host, has not
/// recorded its end, and may therefore run. `restarted`: the scheduler has started this job before,
/// which vouches for the ranks on other hosts if the folder is this job's own.
std::filesystem::path set_earlier_records_aside(const std::filesystem::path& folder,
                                                bool restarted);

/// Returns true if Slurm has started this job before.
bool restarted_by_slurm();

}  // namespace sluice
