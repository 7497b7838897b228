#pragma once

#include <functional>
#include <string>
#include <vector>

namespace sluice {

/// Returns the value of an environment variable, or nullptr.
using Environment = std::function<const char*(const char* name)>;

/// What the environment says of the launcher that started this process. Of several, one inside the
/// other, the innermost counts.
struct Launch {
  std::string launcher{};  ///< such as "srun"; "" if this process was started alone
  std::string size_by{};   ///< the variable that has `size`
  int rank = -1;           ///< -1: not known
  int size = 0;            ///< the number of processes; 0: not known
  bool pmi = false;        ///< the launcher gave what MPI finds the other processes by
  std::string note{};      ///< a sentence for the user; "" if there is nothing odd
};

Launch find_launch(const Environment& environment);

/// Returns why a process that MPI says is alone must not go on, and what helps; "" if it is rightly
/// alone. `library` is what MPI_Get_library_version() says.
std::string wrongly_alone(const Launch& launch, const std::string& library);

/// Returns true if Open MPI chose how ranks are bound to cores, since nobody asked for a binding.
/// `parent` is the command line of the process that started this one. Only Open MPI 4 tells ranks
/// of all hosts; of version 5 the command line on the host of mpirun does.
bool has_default_binding(const Environment& environment, const std::vector<std::string>& parent);

/// Returns the command line of this process's parent; empty if it cannot be read.
std::vector<std::string> parent_command();

/// Lets this rank, one of `local_ranks` that are bound to one core each, use all cores that its
/// launcher may use, if the ranks leave some idle.
void widen_binding(int local_ranks);

}  // namespace sluice
