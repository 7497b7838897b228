#pragma once

#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "tests/faults/form.h"
#include "tests/faults/walk/disk.h"
#include "tests/faults/walk/model.h"

// One sequence of a random walk: carries out the drawn commands and compares what the program does
// with what the rules predict.

namespace sluice::test::walk {

/// The end of a run, by itself or forced.
struct Ending {
  enum class How { by_itself, at_call, held };
  enum class Then { goes_on, stop, kill, second };

  How how = How::by_itself;
  std::string call = {};  ///< strace kills the run at this system call
  int number = 0;         ///< counts calls of that name
  int room = 0;           ///< bytes printed, roughly, when the run is held
  Then then = Then::goes_on;
  int signal = SIGTERM;
};

/// The place and form of a command; none of it changes the right result.
struct Manner {
  std::string from = {};  ///< the working folder, below the sequence's folder
  bool absolute = false;  ///< whether folder names are absolute
  Arguments more = {};    ///< flags that must not affect the result
};

class Sequence {
 public:
  /// `flags` describe the model and its data and equal the flags of `references`.
  Sequence(References& references, Arguments flags);

  Rules rules;
  static constexpr const char* names[] = {"a", "b"};

  void run(const Command& command, const Manner& manner, const Ending& ending);
  /// Starts a run that must be refused because of these flags.
  void refused(const Command& command, const Arguments& wrong);
  /// Copies a whole checkpoint under the name of another step.
  void copy_under_false_name(int checkpoint, int step);
  enum class Damage { weights, optimizer, cut, state };
  void damage(int checkpoint, Damage how);
  void remove_aside(int folder);
  void add_user_file(int folder, const std::string& name);
  void copy_run();

  bool exists(int folder) const { return std::filesystem::exists(output(folder)); }
  bool wrong() const { return !problems_.text().empty(); }
  /// Returns the violations of the rules and all commands so far, so that a person can repeat them.
  std::string problem() const { return problems_.text(); }
  std::string told() const;

 private:
  /// The state of the disk before a command.
  struct Before {
    Digests files;
    std::size_t log_bytes = 0;
    std::string resume;  ///< contents of resume.json
  };
  /// The result of a command.
  struct Done {
    ProgramResult result;
    std::vector<nlohmann::json> events;
    bool asked = false;  ///< whether the run was asked to stop

    const nlohmann::json* last(const std::string& event) const;
    std::vector<int> steps(const std::string& event) const;
  };

  std::filesystem::path output(int folder) const { return dir_.path() / names[folder]; }
  std::filesystem::path checkpoints(int folder) const { return output(folder) / "checkpoints"; }
  /// Returns the folder of a checkpoint; empty if the checkpoint is gone.
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
  /// Returns where the user's file is until a later run repairs the killed export.
  std::filesystem::path moving(int folder, const std::string& name) const;
  void check_new(int checkpoint, const std::filesystem::path& path);
  std::string& digest_of(int checkpoint);
  /// Returns the folder's checkpoint with these bytes; -1: none that was seen.
  int known(int folder, const std::string& bytes) const;
  void add(const std::string& problem) { problems_.add(problem); }
  void tell(const Manner& manner, const Arguments& arguments, const std::string& how);

  References& references_;
  Arguments flags_;
  TempDir dir_;
  Problems problems_;
  std::vector<std::string> told_;
  std::vector<std::string> digests_;              ///< of each checkpoint; "": not seen yet
  bool crashed_[2] = {false, false};              ///< a run crashed and none has ended well since
  std::map<std::string, std::string> users_[2];   ///< paths below the output, and their bytes
  std::map<std::string, std::string> copies_[2];  ///< misnamed copies, and their digests
};

}  // namespace sluice::test::walk
