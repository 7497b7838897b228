#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/faults/form.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/ranks.h"

// Runs of a tiny model that are disturbed and then resumed, and the results that they must reach.

namespace sluice::test {

/// The settings of a case's runs. The same cases apply to all kinds.
struct Kind {
  const char* name;
  int ranks;
  Flags flags;
  bool short_form;       ///< whether the short form includes it, too
  bool threads = false;  ///< a second thread writes; strace counts its calls apart
};

/// Returns the kinds of this form that can run here.
std::vector<Kind> kinds();

/// The way in which a run is made to go wrong.
struct Launch {
  Flags flags = {};
  Arguments tracer = {};    ///< strace and its arguments
  Arguments mpirun = {};    ///< more options for mpirun
  std::string before = {};  ///< a shell command to run first, such as "ulimit -f 400"
};

struct Ended : ProgramResult {
  double seconds = 0;
  std::string words;               ///< the program's stderr, without mpirun's
  std::vector<pid_t> left_behind;  ///< processes of the job that outlived it; killed here
};

/// The result of a finished run: the files of its newest checkpoint and of its model, by name, and
/// loss, norm and rate of each step, as logged.
struct Outcome {
  std::map<std::string, std::string> files;
  std::map<std::int64_t, std::string> steps;
  bool log_has_gap = false;  ///< and the log reports the gap
  std::string problem;       ///< met while reading the results
};
Outcome outcome(const std::filesystem::path& output);
/// Returns how `got` differs from `wanted`; empty if it does not.
std::string difference(const Outcome& got, const Outcome& wanted);

/// A folder for the runs of one kind. It is in an in-memory file system if there is one: waiting
/// for a disk would test nothing here, as the order of writes has a case of its own.
class FaultRuns : public TempDir {
 public:
  explicit FaultRuns(Kind kind, const std::filesystem::path& inside = in_memory());
  static std::filesystem::path in_memory();

  std::string at(const std::string& name) const { return (path() / name).string(); }
  const Kind& kind() const { return kind_; }
  Flags flags(const std::string& output, const Flags& changes) const;
  Arguments command(const std::string& output, const Launch& launch) const;

  Ended run(const std::string& output, const Launch& launch = {}, int limit_seconds = 60) const;
  /// Returns the outcome of a run with these changes and no faults, made once; seconds(): its time.
  const Outcome& undisturbed(const Flags& changes = {});
  double seconds(const Flags& changes = {});

  /// Resumes a disturbed run without faults and returns how it differs from a run without any. It
  /// must resume from its newest checkpoint, unless `older_is_right`.
  std::string goes_on(const std::string& output, const Flags& changes = {},
                      bool older_is_right = false);
  /// Returns what is missing of the checkpoints that a disturbed run has reported as saved.
  std::string keeps_word(const std::string& output) const;
  void forget(const std::string& output) const;

 private:
  struct Made {
    Outcome outcome;
    double seconds;
  };
  const Made& made(const Flags& changes);

  Kind kind_;
  std::map<Flags, Made> made_;
};

/// A run in progress.
class Job {
 public:
  Job(const FaultRuns& runs, const std::string& output, const Launch& launch = {});

  /// Signals the started process: mpirun, or the only process.
  void send(int signal) const { program_->send(signal); }
  /// Returns the ranks' processes that exist.
  std::vector<pid_t> ranks() const { return processes_with(mark_); }
  Ended finish(int limit_seconds = 60);

 private:
  std::string mark_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<RunningProgram> program_;
};

/// Returns all names with ".tmp" anywhere below the folder.
std::vector<std::string> temporaries(const std::filesystem::path& folder);
/// Returns the newest step in a checkpoint's name; -1 if there is no checkpoint.
std::int64_t newest_step(const std::filesystem::path& output);
/// Returns the number of steps in the log of a run that may still be in progress.
std::int64_t steps_logged(const std::filesystem::path& output);
/// Returns the log's events of one kind.
std::vector<std::string> logged(const std::filesystem::path& output, const std::string& event);

}  // namespace sluice::test
