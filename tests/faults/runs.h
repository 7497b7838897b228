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
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

// Runs of a tiny model that are disturbed and then go on, and what they must come to.

namespace sluice::test {

/// How the runs of a case are made. The same cases hold of all kinds.
struct Kind {
  const char* name;
  int ranks;
  Flags flags;
  bool short_form;       ///< whether the short form has it too
  bool threads = false;  ///< a second one writes, whose calls strace counts apart
};

/// The kinds of this form that can be run here.
std::vector<Kind> kinds();

/// How a run is made to go wrong.
struct Launch {
  Flags flags = {};
  Arguments tracer = {};    ///< strace and its arguments
  Arguments mpirun = {};    ///< more options of mpirun
  std::string before = {};  ///< what the shell does first, such as "ulimit -f 400"
};

struct Ended : ProgramResult {
  double seconds = 0;
  std::string words;               ///< of the program on stderr; mpirun's are not among them
  std::vector<pid_t> left_behind;  ///< processes of the job that outlived it; killed here
};

/// What a finished run leaves: the files of its newest checkpoint and of its model, by name; and
/// loss, norm and rate of each step, as the log has them.
struct Outcome {
  std::map<std::string, std::string> files;
  std::map<std::int64_t, std::string> steps;
  bool log_has_gap = false;  ///< and says so
  std::string problem;       ///< of reading them
};
Outcome outcome(const std::filesystem::path& output);
/// What of `got` is not as in `wanted`; empty where all is.
std::string difference(const Outcome& got, const Outcome& wanted);

/// A folder for the runs of one kind: where there is one in memory, there, since to wait for a
/// disk tells nothing here: the order of what is written is a case of its own.
class FaultRuns : public TempDir {
 public:
  explicit FaultRuns(Kind kind, const std::filesystem::path& inside = in_memory());
  static std::filesystem::path in_memory();

  std::string at(const std::string& name) const { return (path() / name).string(); }
  const Kind& kind() const { return kind_; }
  Flags flags(const std::string& output, const Flags& changes) const;
  Arguments command(const std::string& output, const Launch& launch) const;

  Ended run(const std::string& output, const Launch& launch = {}, int limit_seconds = 60) const;
  /// Of a run without faults with these changes, made once. `seconds` of it: for random moments.
  const Outcome& undisturbed(const Flags& changes = {});
  double seconds(const Flags& changes = {});

  /// Lets a disturbed run go on without faults; says what is not as in one without any. It has to
  /// take its newest checkpoint, unless `older_is_right`.
  std::string goes_on(const std::string& output, const Flags& changes = {},
                      bool older_is_right = false);
  /// What must hold of a disturbed run as it was left: what it has said to be saved is there.
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

/// A run at work.
class Job {
 public:
  Job(const FaultRuns& runs, const std::string& output, const Launch& launch = {});

  /// What was started: mpirun, or the only process.
  void send(int signal) const { program_->send(signal); }
  /// The ranks' processes that are there.
  std::vector<pid_t> ranks() const { return processes_with(mark_); }
  Ended finish(int limit_seconds = 60);

 private:
  std::string mark_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<RunningProgram> program_;
};

/// Names with ".tmp" anywhere below the folder.
std::vector<std::string> temporaries(const std::filesystem::path& folder);
/// The step in a checkpoint's name; -1 where there is no checkpoint.
std::int64_t newest_step(const std::filesystem::path& output);
/// How many steps the log has, of a run that may be at work.
std::int64_t steps_logged(const std::filesystem::path& output);
/// The log's events of one kind.
std::vector<std::string> logged(const std::filesystem::path& output, const std::string& event);

}  // namespace sluice::test
