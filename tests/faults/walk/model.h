#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

// The rules of docs/reference/reliability.md ("Checkpoints", "Going back") and
// docs/reference/file-formats.md
// ("Checkpoint folder"), written again from these pages alone, so that mistakes in the programs are
// not repeated here. It touches no files. A checkpoint is a number: its index in Rules::all.

namespace sluice::test::walk {

/// A stretch of steps that were made with the same settings.
struct Leg {
  int until = 0;        ///< the step after the last one of the stretch
  int skipped = 0;      ///< batches left out of the data
  int micro_batch = 0;  ///< decides bits, as `ranks` does
  int ranks = 1;
};
/// The history of a state from the first step on; it determines the state's bytes.
using Way = std::vector<Leg>;
std::string text_of(const Way& way);
/// The name of a step's checkpoint folder.
std::string name_of(int step);

struct Saved {
  int folder = 0;
  Way way;
  int keep = 2;
  int parent = -1;     ///< the checkpoint resumed from, or the save before; -1: none
  bool named = false;  ///< by --resume PATH of a run in its folder
  bool damaged = false;
  bool unreadable = false;  ///< state.json is unreadable, so its ancestors are unknown

  int step() const { return way.empty() ? 0 : way.back().until; }
  int skipped() const { return way.empty() ? 0 : way.back().skipped; }
};

/// A choice made by --resume and --skip-batches. Later saves take precedence over it.
struct Decision {
  int source = -1;
  int skip = 0;
  int keep = 2;
  int before = 0;  ///< index of the first checkpoint saved after the decision
  enum class Place { chain, aside, unnamed } place = Place::chain;  ///< where the source was
};

struct Folder {
  std::vector<int> chain;  ///< under their own names, in the order of their saves
  std::vector<int> aside;  ///< in set-aside/
  std::optional<Decision> decision;
  std::optional<int> unnamed;  ///< whole, but left under a temporary name by a crash
};

enum class Resume { newest, checkpoint, run };

/// The parts of a command that the rules depend on.
struct Command {
  int folder = 0;
  Resume resume = Resume::newest;
  int source = -1;  ///< for Resume::checkpoint
  int run = 0;      ///< for Resume::run: a folder
  int skip = 0;     ///< 0: not given
  int keep = 0;     ///< 0: not given
  int steps = 0;
  int save_every = 0;  ///< 0: only at the end
  bool no_save = false;
  int micro_batch = 0;  ///< 0: not given
  int ranks = 1;
};

/// The checkpoint that a run resumes from, and the damaged ones that it passes over.
struct Start {
  int source = -1;  ///< -1: the run starts from scratch
  std::vector<int> passed;
  int skip = 0;  ///< batches to skip from here on, besides those of the source
  int keep = 0;  ///< the recorded --keep, used if the command gives none
};

/// The outcomes that the rules allow for a command.
struct Plan {
  std::vector<Start> starts;  ///< more than one where the documentation leaves it open
  bool may_refuse = false;    ///< a refusal is allowed, too
  bool decides = false;       ///< the command makes a Decision, which is recorded
};

class Rules {
 public:
  std::vector<Saved> all;
  std::array<Folder, 2> folders;

  Plan plan(const Command& command) const;
  /// Begins an accepted run: an older temporary gets its name, checkpoints that the run does not
  /// descend from are set aside, and a decision is recorded.
  void begin(const Command& command, const Plan& plan, const Start& start);
  /// Saves after `step` steps and returns the new checkpoint. Removes checkpoints beyond --keep.
  int save(const Command& command, const Start& start, int step);
  /// Returns the history of the state of this command's run at `step`.
  Way way(const Command& command, const Start& start, int step) const;

  /// Returns the steps at which a run that ends after `last` saves.
  std::vector<int> due(const Command& command, const Start& start, int last) const;
  int step_of(const Start& start) const;
  int keep_of(const Command& command, const Start& start) const;
  /// Returns the --keep of the last run that saved in the folder; if none did, of the one resumed.
  int keep_before(int folder, const Start& start) const;
  /// Returns how many checkpoints the first save would remove with this --keep.
  int removed_by(const Start& start, int folder, int keep) const;
  /// Returns the ancestors of a checkpoint within its folder, the nearest first.
  std::vector<int> ancestors(int checkpoint) const;
  /// Returns the ancestors that --resume PATH has named.
  std::vector<int> named_by_path(int checkpoint) const;

  /// Copies folder 0 to folder 1, as a user would. Maps the originals' numbers to the copies'.
  std::vector<int> copy_folder();

 private:
  Plan newest_of(int folder) const;
  /// Returns the folder's checkpoints, the oldest first, including one with a temporary name.
  std::vector<int> line_of(int folder) const;
  /// Returns the checkpoints saved after the folder's decision.
  std::vector<int> since_decision(int folder) const;
  std::optional<Decision::Place> place_of(int checkpoint) const;
  /// Returns which of the folder's checkpoints are removed when one is saved after `ancestors`.
  std::vector<int> removed(const std::vector<int>& chain, const std::vector<int>& ancestors,
                           const std::vector<int>& named, int keep) const;
};

bool holds(const std::vector<int>& all, int one);

}  // namespace sluice::test::walk
