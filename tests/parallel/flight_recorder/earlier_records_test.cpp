#include "parallel/flight_recorder/earlier_records.h"

#include <csignal>
#include <cstring>
#include <set>
#include <string>

#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/last_words.h"
#include "parallel/flight_recorder/record_layout.h"
#include "parallel/flight_recorder/shared_post_mortem.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/process/child.h"
#include "tests/support/temp_dir.h"

// A job that is started again has an empty folder for its records, unless the earlier one may still
// run.

namespace sluice::test::earlier_records_test {
namespace {

/// Leaves the record of a process that has ended, with or without saying so.
void leave_record(const fs::path& folder, int rank, bool finished) {
  Child child([&] {
    FlightRecorder ring(folder, rank, 3);
    if (finished) ring.finish();
    return 0;
  });
  REQUIRE(child.reap() == 0);
}

/// Makes the record that of a process on another host.
void move_to_other_host(const fs::path& folder, int rank) {
  std::string bytes = read_file(record_path(folder, rank));
  RecordLayout layout;
  std::memcpy(static_cast<void*>(&layout), bytes.data(), sizeof layout);
  layout.header.host.fill('\0');
  std::memcpy(layout.header.host.data(), "elsewhere", 9);
  std::memcpy(bytes.data(), static_cast<const void*>(&layout), sizeof layout);
  write_file(record_path(folder, rank), bytes);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

std::string refusal(const fs::path& folder, bool restarted = false) {
  return error_message([&] { set_earlier_records_aside(folder, restarted); });
}

}  // namespace

TEST_CASE("records of a job that has ended go into a folder of their own", "[earlier_records]") {
  const TempDir folder;
  CHECK(set_earlier_records_aside(folder.path(), false).empty());
  CHECK(set_earlier_records_aside(folder.path() / "none", false).empty());
  write_file(folder.path() / "rank-notes.txt", "mine");
  CHECK(set_earlier_records_aside(folder.path(), false).empty());

  leave_record(folder.path(), 0, true);
  leave_record(folder.path(), 2, false);
  write_file(folder.path() / "rank-1.ring", "cut");
  CHECK_FALSE(shared_post_mortem(folder.path(), 3).empty());
  CHECK(speak_first(folder.path(), "a sentence"));
  CHECK_FALSE(speak_first(folder.path(), "a sentence"));
  const fs::path earlier = set_earlier_records_aside(folder.path(), false);
  CHECK(earlier == folder.path() / "earlier-1");
  CHECK(names_in(earlier) == std::set<std::string>{"post-mortem", "rank-0.ring", "rank-1.ring",
                                                   "rank-2.ring", "spoken"});
  CHECK(names_in(folder.path()) == std::set<std::string>{"earlier-1", "rank-notes.txt"});
  CHECK(read_records(earlier).size() == 2);
  CHECK(read_records(folder.path()).empty());
  CHECK(speak_first(folder.path(), "a sentence"));  // the next job's first rank

  leave_record(folder.path(), 0, true);
  write_file(folder.path() / "earlier-2", "a file");
  CHECK(set_earlier_records_aside(folder.path(), false) == folder.path() / "earlier-3");
  CHECK(read_records(earlier).size() == 2);
}

TEST_CASE("records of a job that runs stay, and the new one is refused", "[earlier_records]") {
  const TempDir folder;
  leave_record(folder.path(), 1, true);
  const FlightRecorder running(folder.path(), 0, 3);
  for (const bool restarted : {false, true})
    CHECK_THAT(refusal(folder.path(), restarted),
               Contains("rank 0") && Contains("is running") && Contains("a folder of their own"));
  CHECK(names_in(folder.path()) == std::set<std::string>{"rank-0.ring", "rank-1.ring"});
}

TEST_CASE("a rank that is stopped has not ended", "[earlier_records]") {
  const TempDir folder;
  const Child child([&] {
    const FlightRecorder ring(folder.path(), 0, 1);
    return ::raise(SIGSTOP);
  });
  child.await_end_or_stop();
  CHECK_THAT(refusal(folder.path(), true), Contains("is stopped"));
}

TEST_CASE("whether a rank elsewhere has ended its record tells, or the scheduler",
          "[earlier_records]") {
  const TempDir folder;
  leave_record(folder.path(), 0, true);
  move_to_other_host(folder.path(), 0);
  CHECK(refusal(folder.path()) == "(no error)");

  leave_record(folder.path(), 1, false);
  move_to_other_host(folder.path(), 1);
  CHECK_THAT(refusal(folder.path()),
             Contains("rank 1") && Contains("on elsewhere") && Contains("may still run"));
  CHECK(refusal(folder.path(), true) == "(no error)");
  CHECK(names_in(folder.path()) == std::set<std::string>{"earlier-1", "earlier-2"});

  leave_record(folder.path(), 2, false);
  move_to_other_host(folder.path(), 2);
  CHECK(speak_first(folder.path(), "rank 2 was killed"));  // so that job ends everywhere
  CHECK(refusal(folder.path()) == "(no error)");
}

TEST_CASE("Slurm says when it has started a job before", "[earlier_records]") {
  REQUIRE(::unsetenv("SLURM_RESTART_COUNT") == 0);
  CHECK_FALSE(restarted_by_slurm());
  for (const auto& [count, restarted] : {std::pair("0", false), {"1", true}, {"12", true}}) {
    REQUIRE(::setenv("SLURM_RESTART_COUNT", count, 1) == 0);
    CHECK(restarted_by_slurm() == restarted);
  }
  REQUIRE(::unsetenv("SLURM_RESTART_COUNT") == 0);
}

}  // namespace sluice::test::earlier_records_test
