#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Runs train_gpt2 as several ranks, as a user would: with mpirun, one thread per rank.

namespace sluice::test {

using Flags = std::map<std::string, std::string>;
/// Merges flags; the second operand's value wins.
Flags operator+(Flags a, const Flags& b);
/// Returns the flags of the training that produced the fixture's reference.
Flags reference_flags(const Fixture& fixture);

/// Returns a job in words, for messages.
std::string shown(int ranks, const Flags& flags);

/// Returns true if mpirun is available; warns if it is not.
bool have_mpirun();

/// Returns what all tests give to mpirun: flags that Open MPI needs and MPICH does not know.
Arguments mpirun_flags();

/// MPICH's launcher kills all ranks as soon as one is killed or exits without a word. None of them
/// can tell of it then, and records do not show which was the first.
bool launcher_kills_at_once();

struct RanksResult : ProgramResult {
  std::vector<std::string> errors;  ///< the program's error messages on stderr, with indented lines
  std::vector<pid_t> left_behind;   ///< processes of the job that outlived it; killed here

  /// Requires that the job succeeded without a word from the program on stderr.
  void require_good() const;
};

/// Returns the train_gpt2 processes that have `mark` in their arguments.
std::vector<pid_t> processes_with(const std::string& mark);
/// Waits for the process of a rank and returns it.
pid_t process_of_rank(int rank, const std::filesystem::path& rank_files);

/// A job of ranks, which writes into the folder `output`.
struct RankJob {
  int ranks;
  std::string output;
  Flags changes;
  std::string program = "train_gpt2";
};

/// A folder for runs that share a small model, data and flags.
class RankRuns : public TempDir {
 public:
  RankRuns();

  std::string at(const std::string& name) const { return (path() / name).string(); }
  /// Returns the flags of a run into the folder `output`; the value "-" removes a flag.
  Flags flags(const std::string& output, const Flags& changes) const;
  /// Runs with mpirun, or without it for one rank. No process of the job remains on return: a job
  /// that takes longer than a minute is killed. `program` replaces train_gpt2.
  RanksResult run(int ranks, const std::string& output, const Flags& changes,
                  const std::string& program = "train_gpt2") const;
  /// Runs the jobs, a few at a time: much of what a job takes is waiting, for deadlines or for
  /// mpirun, which gives what is left of a failed job a second. No output may begin with another's.
  std::vector<RanksResult> run(const std::vector<RankJob>& jobs) const;
  /// Runs and requires that the job succeeds and leaves nothing but its output.
  void run_well(int ranks, const std::string& output, const Flags& changes) const;
  void run_well(const std::vector<RankJob>& jobs) const;

 private:
  friend class RunningRanks;
  Arguments command(int ranks, const std::string& output, const Flags& changes,
                    const std::string& program) const;
};

/// A job that must be refused: one error with these words, exit code 2, nothing written.
struct Refusal {
  int ranks;
  Flags changes;
  std::vector<std::string> words;
  std::string program = "train_gpt2";
};
void refused(const RankRuns& runs, const std::vector<Refusal>& rows);
void refused(const RankRuns& runs, int ranks, const Flags& changes,
             const std::vector<std::string>& words, const std::string& program = "train_gpt2");

/// Ranks in progress, with records in OUTPUT.ranks.
class RunningRanks {
 public:
  RunningRanks(const RankRuns& runs, int ranks, const std::string& output, const Flags& changes);

  pid_t rank(int rank) const { return process_of_rank(rank, mark_ + ".ranks"); }
  RanksResult finish();

 private:
  std::string mark_;
  std::optional<RunningProgram> job_;
};

/// Returns the loss of every step in the log.
std::map<std::int64_t, double> logged_losses(const std::filesystem::path& output);

/// The bytes of the newest checkpoint and of the exported model, if there is one.
struct TrainedFiles {
  std::string weights, optimizer, model;
  bool operator==(const TrainedFiles&) const = default;
};
TrainedFiles trained_files(const std::filesystem::path& output);

}  // namespace sluice::test
