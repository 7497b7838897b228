#include "parallel/flight_recorder/earlier_records.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <system_error>
#include <vector>

#include "kernels/base/error.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/last_words.h"
#include "parallel/flight_recorder/shared_post_mortem.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Returns true if a record, a post mortem or what speak_first() leaves has this name.
bool is_of_a_job(const fs::path& name) {
  return (name.string().starts_with("rank-") && name.extension() == ".ring") ||
         name == last_words_name || name == post_mortem_name;
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

[[noreturn]] void refuse_to_move(const fs::path& folder, const std::error_code& error) {
  fail(fmt::format(
           "the records of an earlier job in {} cannot be moved: {}; give the ranks of a job "
           "a folder of their own",
           folder.string(), error.message()),
       ErrorKind::usage);
}

fs::path new_folder_in(const fs::path& folder) {
  for (int number = 1;; ++number) {
    fs::path earlier = folder / fmt::format("earlier-{}", number);
    std::error_code error;
    if (fs::create_directory(earlier, error)) return earlier;
    if (error && error != std::errc::file_exists) refuse_to_move(folder, error);
  }
}

}  // namespace

fs::path set_earlier_records_aside(const fs::path& folder, bool restarted) {
  std::error_code error;
  std::vector<fs::path> old;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (is_of_a_job(entry->path().filename())) old.push_back(entry->path());
  if (old.empty()) return {};
  // A job that has reported its failure ends on all hosts.
  const bool reported = fs::exists(folder / last_words_name, error);
  for (const RankRecord& record : read_records(folder))
    require_ended(folder, record, restarted || reported);
  fs::path earlier = new_folder_in(folder);
  for (const fs::path& path : old) {
    fs::rename(path, earlier / path.filename(), error);
    if (error) refuse_to_move(folder, error);
  }
  return earlier;
}

bool restarted_by_slurm() {
  const char* const count = std::getenv("SLURM_RESTART_COUNT");
  return count != nullptr && std::string_view(count) != "0";
}

}  // namespace sluice
