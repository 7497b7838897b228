#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "tests/faults/small_disk.h"
#include "tests/faults/trace.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

// The system refuses what a run asks of it: calls fail, a disk is full. What was saved before
// stays, the run says what failed and why, and goes on afterwards to the bytes of a run that had
// no trouble.

namespace sluice::test::errors_test {
namespace {

constexpr int last_step = 5;
constexpr double all_are_done_within = 10;

const Flags keep_two{{"--keep", "2"}};

/// The step whose save this call is part of, if it is.
std::optional<int> step_of(const Call& call) {
  for (const auto& path : call.paths)
    if (const auto at = path.string().find("step-"); at != std::string::npos)
      return std::stoi(path.string().substr(at + 5, 8));
  return std::nullopt;
}

struct Expected {
  bool may_end = true;  ///< the run
  bool may_say_nothing = false;
  bool log_may_lack_it = false;  ///< the call was to write its last line
  std::string reason;            ///< the system's words
};

/// Checks the rules for a run in which something has failed.
std::string judge(FaultRuns& runs, const std::string& output, const Ended& ended,
                  const Expected& expected) {
  Problems problems;
  problems.require(!ended.timed_out && ended.seconds < all_are_done_within,
                   fmt::format("it took {:.1f} s", ended.seconds));
  problems.require(ended.left_behind.empty(), "processes were left behind");
  problems.require(ended.signal == 0, "ended by signal " + std::to_string(ended.signal));
  const bool went_on = ended.exit_code == 0;
  problems.require(went_on || (ended.exit_code == 1 && expected.may_end),
                   "exit code " + std::to_string(ended.exit_code) + ": " + ended.err);
  // Named are what failed and why: by a warning, or by the one sentence of a run that ends.
  const std::string& words = went_on ? ended.out : ended.words;
  const bool warned = words.find(went_on ? "warning" : "error: ") != std::string::npos;
  if (!went_on || !expected.may_say_nothing) {
    problems.require(warned, "it said nothing");
    problems.require(words.find(expected.reason) != std::string::npos,
                     "the reason is not in: " + words);
    problems.require(words.find(runs.at(output)) != std::string::npos, "no path is in: " + words);
  }
  if (went_on && warned && !expected.log_may_lack_it)
    problems.require(!logged(runs.path() / output, "warning").empty(), "the log has no warning");
  problems.require(went_on || count_lines(ended.words) <= 1, "several lines: " + ended.words);
  // An older checkpoint that could not be removed has lost its name, is told of, and goes later.
  for (const auto& name : temporaries(runs.path() / output))
    problems.require(name.ends_with(".old") && warned, name + " was left behind");
  problems.add(runs.keeps_word(output));
  problems.add(runs.goes_on(output, keep_two));
  runs.forget(output);
  return problems.text();
}

struct Error {
  const char* name;
  int number;
};

bool writes_log(const Call& call) {
  return call.writes() && call.paths.front().filename() == "log.jsonl";
}

/// Runs once for each call, which fails; the error is the next of `errors` each time, or each. No
/// line of the log comes after the call with the number `last_line`.
void fail_each(FaultRuns& runs, const std::vector<Call>& calls, int last_line,
               const std::vector<Error>& errors, bool all_errors, Tally& tally) {
  std::size_t turn = 0;
  for (const Call& call : calls) {
    for (std::size_t i = 0; i < (all_errors ? errors.size() : 1); ++i) {
      const Error& error = errors[turn++ % errors.size()];
      const Ended ended = runs.run(
          "failed",
          {.flags = keep_two, .tracer = injecting(call, std::string("error=") + error.name)});
      const auto step = step_of(call);
      Expected expected;
      // A save on the way that fails is a warning.
      expected.may_end = !step || *step == last_step;
      // An interrupted call is repeated. Whether a file could be closed after it was synced, or
      // opened to be looked at, or a folder made that is there, changes nothing.
      expected.may_say_nothing = error.number == EINTR || call.name == "close" ||
                                 call.name == "openat" || call.name == "mkdir";
      expected.log_may_lack_it = writes_log(call) && call.number == last_line;
      expected.reason = std::strerror(error.number);
      tally.round(text_of(call) + " " + error.name, judge(runs, "failed", ended, expected));
    }
  }
}

}  // namespace

TEST_CASE("a call that fails costs no checkpoint and is told of") {
  if (!have_strace()) return;
  const std::vector<Error> errors{
      {"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EDQUOT", EDQUOT}, {"EINTR", EINTR}};
  for (const Kind& kind : kinds()) {
    if (kind.threads) continue;  // a number does not tell which call that is
    FaultRuns runs(kind);
    Tally tally(std::string("c: calls that fail, ") + kind.name);
    const Arguments names{"write",  "pwrite64", "fsync",  "fdatasync",
                          "openat", "mkdir",    "rename", "close"};
    std::vector<Call> writes = traced(runs, "traced", names, keep_two), others = writes,
                      renames = writes;
    std::erase_if(renames, [](const Call& call) { return call.name != "rename"; });
    std::erase_if(writes, [](const Call& call) { return !call.writes(); });
    std::erase_if(others, [](const Call& call) { return call.writes(); });
    const auto last = std::ranges::find_if(writes.rbegin(), writes.rend(), writes_log);
    REQUIRE(last != writes.rend());
    const int last_line = last->number;
    fail_each(runs, thinned(others, 26), last_line, errors, long_form() && kind.ranks == 1, tally);
    // Few of the calls are renames, but without one nothing is ever saved.
    if (!long_form())
      fail_each(runs, thinned(renames, renames.size()), last_line, errors, false, tally);
    // Ranks wake each other by writes, more or fewer each time, so that a number does not tell
    // which of them is to a file: the full disks below are for that.
    if (kind.ranks > 1) continue;
    fail_each(runs, thinned(writes, 400), last_line, errors, false, tally);
    // ENOSPC at each.
    if (long_form()) fail_each(runs, writes, last_line, {errors.front()}, false, tally);
  }
}

TEST_CASE("a write that takes fewer bytes than it says is found when the file is read") {
  if (!have_strace()) return;
  FaultRuns runs(kinds().front());
  Tally tally("c: writes that lie");
  const Flags flags = keep_two + Flags{{"--steps", "4"}};
  std::vector<Call> writes = traced(runs, "traced", {"write"}, flags);
  std::erase_if(writes, [](const Call& call) { return !step_of(call); });
  for (const Call& call : thinned(writes, 100)) {
    // One byte is reported to be written, and none is: the file is damaged without a sign.
    const Ended ended = runs.run("short", {.flags = flags, .tracer = injecting(call, "retval=1")});
    Problems problems;
    problems.require(ended.signal == 0 && !ended.timed_out, "it crashed or hung");
    // The only checkpoint, if that is the damaged one, is refused by name.
    const auto all = newest_step(runs.path() / "short");
    const Ended next = runs.run("short", {.flags = keep_two});
    if (next.exit_code == 0)
      problems.add(runs.goes_on("short", keep_two, true));
    else
      problems.require(next.exit_code == 1 && next.words.find("damaged") != std::string::npos,
                       "not refused as damaged, of step " + std::to_string(all) + ": " + next.err);
    runs.forget("short");
    tally.round(text_of(call), problems.text());
  }
}

TEST_CASE("a full disk costs no checkpoint, and the run goes on once there is space") {
  for (const Kind& kind : kinds()) {
    FaultRuns runs(kind);
    Tally tally(std::string("c: full disk, ") + kind.name);
    // The smallest has space for one checkpoint, the largest for all that is ever there.
    for (int kib = 480; kib <= 1760; kib += by_form(640, 20)) {
      const std::string size = std::to_string(kib) + "k", output = "disk " + size;
      const SmallDisk disk(runs.path() / output, size.c_str());
      if (!disk.mounted()) return skip("no file system can be mounted here");
      const Ended ended = runs.run(output, {.flags = keep_two});
      Problems problems;
      problems.require(!ended.timed_out && ended.seconds < all_are_done_within, "it took too long");
      const std::int64_t newest = newest_step(runs.path() / output);
      const bool all_there = newest == last_step && fs::exists(runs.path() / output / "model");
      problems.require(ended.exit_code == (all_there ? 0 : 1),
                       "exit code " + std::to_string(ended.exit_code));
      problems.require(
          all_there || (ended.words.find("No space left on device") != std::string::npos &&
                        ended.words.find(runs.at(output)) != std::string::npos),
          "path or reason is not in: " + ended.words);
      problems.require(kib > 480 || !all_there, "the disk was not full");
      problems.require(newest >= 2, "the checkpoint is gone");
      for (const auto& name : temporaries(runs.path() / output))
        problems.add(name + " was left behind");
      disk.change(0, "8m");
      problems.add(runs.goes_on(output, keep_two));
      tally.round(size, problems.text());
    }
  }
}

TEST_CASE("a limit on the size of files costs no checkpoint") {
  FaultRuns runs(kinds().front());
  Tally tally("c: limit on the size of files");
  // Limits are in blocks of 512 bytes: the optimizer's file does not fit; the log does.
  runs.run("limited", {.flags = keep_two + Flags{{"--steps", "2"}}});
  for (const char* before : {"trap '' XFSZ; ulimit -f 400", "trap '' XFSZ; ulimit -f 100"}) {
    const Ended ended = runs.run("limited", {.flags = keep_two, .before = before});
    Problems problems;
    problems.require(
        ended.exit_code == 1 && ended.words.find(std::strerror(EFBIG)) != std::string::npos,
        "exit code " + std::to_string(ended.exit_code) + ": " + ended.err);
    problems.require(newest_step(runs.path() / "limited") == 2, "another newest checkpoint");
    for (const auto& name : temporaries(runs.path() / "limited"))
      problems.add(name + " was left behind");
    tally.round(before, problems.text());
  }
  tally.round("without a limit", runs.goes_on("limited", keep_two));
}

TEST_CASE("an output folder that cannot be written is told of before the training") {
  FaultRuns runs(kinds().front());
  Tally tally("e: read-only file system");
  const SmallDisk disk(runs.path() / "out", "8m");
  if (!disk.mounted()) return skip("no file system can be mounted here");
  REQUIRE(runs.run("out", {.flags = keep_two + Flags{{"--steps", "4"}}}).exit_code == 0);
  disk.change(MS_RDONLY, "8m");
  const Ended ended = runs.run("out", {.flags = keep_two});
  Problems problems;
  problems.require((ended.exit_code == 1 || ended.exit_code == 2) &&
                       ended.words.find(runs.at("out")) != std::string::npos &&
                       count_lines(ended.words) == 1,
                   "exit code " + std::to_string(ended.exit_code) + ": " + ended.err);
  problems.require(ended.out.find("step 5") == std::string::npos, "it trained first");
  disk.change(0, "8m");
  problems.add(runs.goes_on("out", keep_two));
  tally.round("mounted read-only", problems.text());
}

}  // namespace sluice::test::errors_test
