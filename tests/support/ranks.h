#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Runs train_gpt2 as several ranks, as a user would: by mpirun, one thread a rank.

namespace sluice::test {

using Flags = std::map<std::string, std::string>;
/// The flags of both; of one that is in both, the second's value.
Flags operator+(Flags a, const Flags& b);
/// What the reference's training was made with.
Flags reference_flags(const Fixture& fixture);

/// Whether there is an mpirun; a warning where there is none.
bool have_mpirun();

struct RanksResult : ProgramResult {
  std::vector<std::string> errors;  ///< the program's own on stderr, with what is indented below
  std::vector<pid_t> left_behind;   ///< processes of the job that outlived it; killed here

  /// It did its work, without a word on stderr from the program.
  void require_good() const;
};

/// Processes of train_gpt2 that have `mark` in their arguments.
std::vector<pid_t> processes_with(const std::string& mark);
/// The process of a rank, once it is there.
pid_t process_of_rank(int rank, const std::filesystem::path& rank_files);

/// A folder for runs with the same small model, data and flags.
class RankRuns : public TempDir {
 public:
  RankRuns();

  std::string at(const std::string& name) const { return (path() / name).string(); }
  /// The flags of a run into the folder `output`; the value "-" takes a flag away.
  Flags flags(const std::string& output, const Flags& changes) const;
  /// By mpirun, or without it for one rank. Nothing of it is left when this returns: what takes
  /// longer than a minute is killed. `program` takes the place of train_gpt2.
  RanksResult run(int ranks, const std::string& output, const Flags& changes,
                  const std::string& program = "train_gpt2") const;
  /// The same, and it has to do its work and to leave nothing but that.
  void run_well(int ranks, const std::string& output, const Flags& changes) const;

 private:
  friend class RunningRanks;
  Arguments command(int ranks, const std::string& output, const Flags& changes,
                    const std::string& program) const;
};

/// Runs what has to be refused: one error with these words, exit code 2, and nothing written.
void refused(const RankRuns& runs, int ranks, const Flags& changes,
             const std::vector<std::string>& words, const std::string& program = "train_gpt2");

/// Ranks that are at work, with records in OUTPUT.ranks.
class RunningRanks {
 public:
  RunningRanks(const RankRuns& runs, int ranks, const std::string& output, const Flags& changes);

  pid_t rank(int rank) const { return process_of_rank(rank, mark_ + ".ranks"); }
  RanksResult finish();

 private:
  std::string mark_;
  std::optional<RunningProgram> job_;
};

/// What the log says of every step: the loss.
std::map<std::int64_t, double> logged_losses(const std::filesystem::path& output);

/// The bytes of the newest checkpoint and of the exported model, if there is one.
struct TrainedFiles {
  std::string weights, optimizer, model;
  bool operator==(const TrainedFiles&) const = default;
};
TrainedFiles trained_files(const std::filesystem::path& output);

}  // namespace sluice::test
