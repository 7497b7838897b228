#pragma once

#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "tests/faults/form.h"
#include "tests/faults/walk_disk.h"
#include "tests/faults/walk_model.h"

// One sequence of a random walk: carries out what was drawn, and compares what the program does
// with what the rules say.

namespace sluice::test::walk {

/// How a run ends.
struct Ending {
  enum class How { by_itself, at_call, held };
  enum class Then { goes_on, stop, kill, second };

  How how = How::by_itself;
  std::string call = {};  ///< killed at this system call, by strace
  int number = 0;         ///< the how manieth of that name
  int room = 0;           ///< held when it has printed so many bytes, about
  Then then = Then::goes_on;
  int signal = SIGTERM;
};

/// Where and how a command is given; nothing of it changes what is right.
struct Manner {
  std::string from = {};  ///< the folder that it is given in, below the sequence's
  bool absolute = false;  ///< names of folders
  Arguments more = {};    ///< flags that do not matter
};

class Sequence {
 public:
  /// `flags`: of the model and its data, as those of `references`.
  Sequence(References& references, Arguments flags);

  Rules rules;
  static constexpr const char* names[] = {"a", "b"};

  void run(const Command& command, const Manner& manner, const Ending& ending);
  /// A start that is wrong by these flags.
  void refused(const Command& command, const Arguments& wrong);
  /// A whole checkpoint under the name of another step.
  void copy_under_false_name(int checkpoint, int step);
  enum class Damage { weights, optimizer, cut, state };
  void damage(int checkpoint, Damage how);
  void remove_aside(int folder);
  void add_user_file(int folder, const std::string& name);
  void copy_run();

  bool exists(int folder) const { return std::filesystem::exists(output(folder)); }
  bool wrong() const { return !problems_.text().empty(); }
  /// Whatever was not as the rules say, and all that was done, for a person to do again.
  std::string problem() const { return problems_.text(); }
  std::string told() const;

 private:
  /// What there is before a command.
  struct Before {
    Digests files;
    std::size_t log_bytes = 0;
    nlohmann::json resume;
  };
  /// What a command has done.
  struct Done {
    ProgramResult result;
    std::vector<nlohmann::json> events;
    bool asked = false;  ///< to stop

    const nlohmann::json* last(const std::string& event) const;
    std::vector<int> steps(const std::string& event) const;
  };

  std::filesystem::path output(int folder) const { return dir_.path() / names[folder]; }
  std::filesystem::path checkpoints(int folder) const { return output(folder) / "checkpoints"; }
  /// Where it is; empty where it is gone.
  std::filesystem::path place(int checkpoint) const;
  std::filesystem::path named(int checkpoint) const;
  std::filesystem::path in_aside(int checkpoint) const;

  Arguments arguments(const Command& command, const Manner& manner) const;
  ProgramResult perform(const Command& command, const Manner& manner, const Ending& ending);
  void second(const Command& command, pid_t holder);
  Before before(int folder) const;
  void compare(const Command& command, const Before& before, const Done& done);
  void ended_well(const Command& command, const Plan& plan, const Start& start, const Done& done);
  void sentences(const Command& command, const Start& start, const Rules& before, const Done& done);
  void cut_short(const Command& command, const Plan& plan, const Start& start, const Before& before,
                 const Done& done);
  void find_temporary(int folder, const Rules* after_next);
  bool is_noted(int folder) const;
  void unchanged(const Command& command, const Before& before, const ProgramResult& result,
                 bool two);

  void check_all();
  void check_folder(int folder);
  void check_aside(int folder);
  /// Where the user's file is until a killed export is made up for.
  std::filesystem::path moving(int folder, const std::string& name) const;
  void check_new(int checkpoint, const std::filesystem::path& path);
  std::string& digest_of(int checkpoint);
  /// The folder's checkpoint with these bytes; -1: none, that was seen.
  int known(int folder, const std::string& bytes) const;
  void add(const std::string& problem) { problems_.add(problem); }
  void tell(const Manner& manner, const Arguments& arguments, const std::string& how);

  References& references_;
  Arguments flags_;
  TempDir dir_;
  Problems problems_;
  std::vector<std::string> told_;
  std::vector<std::string> digests_;              ///< of each checkpoint; "": not seen yet
  bool crashed_[2] = {false, false};              ///< and has not ended well since
  std::map<std::string, std::string> users_[2];   ///< files, below the output, and their bytes
  std::map<std::string, std::string> copies_[2];  ///< under false names, and their digests
};

}  // namespace sluice::test::walk
