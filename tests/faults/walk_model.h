#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

// The rules of docs/reliability.md ("Checkpoints", "Going back") and docs/file-formats.md
// ("Checkpoint folder"), told once more: from these pages alone, so that the programs' mistakes are
// not made again here. It knows no files. A checkpoint is a number, its place in Rules::all.

namespace sluice::test::walk {

/// Steps that were made alike.
struct Leg {
  int until = 0;        ///< the step after the last of them
  int skipped = 0;      ///< batches left out of the data
  int micro_batch = 0;  ///< which decides bits, as ranks do
  int ranks = 1;
};
/// How a state came about, from the first step on: what decides its bytes.
using Way = std::vector<Leg>;
std::string text_of(const Way& way);

struct Saved {
  int folder = 0;
  Way way;
  int keep = 2;
  int parent = -1;     ///< what its run went on from, or the save before; -1: nothing
  bool named = false;  ///< by --resume PATH of a run in its folder
  bool damaged = false;
  bool unreadable = false;  ///< its state.json is: nobody can know what it descends from

  int step() const { return way.empty() ? 0 : way.back().until; }
  int skipped() const { return way.empty() ? 0 : way.back().skipped; }
};

/// What --resume and --skip-batches have said. What is saved after it counts before it.
struct Decision {
  int source = -1;
  int skip = 0;
  int keep = 2;
  int before = 0;  ///< the first number of what was saved after it
  enum class Place { chain, aside, unnamed } place = Place::chain;  ///< where the source was then
};

struct Folder {
  std::vector<int> chain;  ///< under their names, in the order of their saves
  std::vector<int> aside;  ///< in set-aside/
  std::optional<Decision> decision;
  std::optional<int> unnamed;  ///< whole, but a crash has left it as a temporary
};

enum class Resume { newest, checkpoint, run };

/// What of a command concerns the rules.
struct Command {
  int folder = 0;
  Resume resume = Resume::newest;
  int source = -1;  ///< of Resume::checkpoint
  int run = 0;      ///< of Resume::run, a folder
  int skip = 0;     ///< 0: not given
  int keep = 0;     ///< 0: not given
  int steps = 0;
  int save_every = 0;  ///< 0: at the end alone
  bool no_save = false;
  int micro_batch = 0;  ///< 0: not given
  int ranks = 1;
};

/// What a run goes on from, and what is damaged and passed over.
struct Start {
  int source = -1;  ///< -1: it begins anew
  std::vector<int> passed;
  int skip = 0;  ///< batches left out from here on, beside those of the source
  int keep = 0;  ///< as it says itself, where the command does not
};

/// What the rules say of a command.
struct Plan {
  std::vector<Start> starts;  ///< more than one where the documentation leaves it open
  bool may_refuse = false;    ///< so too, beside the starts
  bool decides = false;       ///< and this is noted
};

class Rules {
 public:
  std::vector<Saved> all;
  std::array<Folder, 2> folders;

  Plan plan(const Command& command) const;
  /// A run that was accepted begins: an older temporary gets its name, what it does not descend
  /// from is set aside, a decision is noted.
  void begin(const Command& command, const Plan& plan, const Start& start);
  /// It saves after this many steps; the new checkpoint. What is not kept any more goes.
  int save(const Command& command, const Start& start, int step);
  /// The state of the run of that command at that step.
  Way way(const Command& command, const Start& start, int step) const;

  /// The steps that are saved, of a run that ends after `last`.
  std::vector<int> due(const Command& command, const Start& start, int last) const;
  int step_of(const Start& start) const;
  int keep_of(const Command& command, const Start& start) const;
  /// Of the run that saved last in the folder; without one, of that which it goes on from.
  int keep_before(int folder, const Start& start) const;
  /// How many checkpoints the first save would remove with this --keep.
  int removed_by(const Start& start, int folder, int keep) const;
  /// Those that it descends from in its folder, the nearest first.
  std::vector<int> ancestors(int checkpoint) const;
  /// Of them, those that --resume PATH has named.
  std::vector<int> named_by_path(int checkpoint) const;

  /// The user copies folder 0 to folder 1. The copies' numbers, by those of the originals.
  std::vector<int> copy_folder();

 private:
  Plan newest_of(int folder) const;
  /// In the folder, under its name or as a temporary; the oldest first.
  std::vector<int> line_of(int folder) const;
  /// What was saved after its decision.
  std::vector<int> since_decision(int folder) const;
  std::optional<Decision::Place> place_of(int checkpoint) const;
  /// `next` is saved after `ancestors`: what of the folder's checkpoints goes.
  std::vector<int> removed(const std::vector<int>& chain, const std::vector<int>& ancestors,
                           const std::vector<int>& named, int keep) const;
};

bool holds(const std::vector<int>& all, int one);

}  // namespace sluice::test::walk
