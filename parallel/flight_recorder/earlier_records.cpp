#include "parallel/flight_recorder/earlier_records.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <system_error>
#include <vector>

#include "kernels/base/error.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/last_words.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Returns true if a record or what speak_first() leaves has this name.
bool is_of_a_job(const fs::path& name) {
  return (name.string().starts_with("rank-") && name.extension() == ".ring") ||
         name == last_words_name;
}

/// Throws an Error if the rank of this record may still run.
void require_ended(const fs::path& folder, const RankRecord& record, bool restarted) {
  const auto refuse = [&](std::string_view why) {
    fail(fmt::format("{} holds the records of another job, and its rank {}, process {} on {}, {}: "
                     "give the ranks of a job a folder of their own",
                     folder.string(), record.rank, record.id.pid, record.id.host, why),
         ErrorKind::usage);
  };
  if (record.process == ProcessState::running) refuse("is running");
  if (record.process == ProcessState::stopped) refuse("is stopped, not ended");
  if (record.process == ProcessState::unknown && !restarted &&
      record.outcome == RankRecord::Outcome::none)
    refuse("may still run");
}

fs::path new_folder_in(const fs::path& folder) {
  for (int number = 1;; ++number) {
    fs::path earlier = folder / fmt::format("earlier-{}", number);
    if (fs::create_directory(earlier)) return earlier;
  }
}

}  // namespace

fs::path set_earlier_records_aside(const fs::path& folder, bool restarted) {
  std::error_code missing;
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder, missing))
    if (is_of_a_job(entry.path().filename())) old.push_back(entry.path());
  if (old.empty()) return {};
  for (const RankRecord& record : read_records(folder))
    require_ended(folder, record, restarted);
  fs::path earlier = new_folder_in(folder);
  for (const fs::path& path : old)
    fs::rename(path, earlier / path.filename());
  return earlier;
}

bool restarted_by_slurm() {
  const char* const count = std::getenv("SLURM_RESTART_COUNT");
  return count != nullptr && std::string_view(count) != "0";
}

}  // namespace sluice
