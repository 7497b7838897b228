#include "parallel/comm/transport/launcher.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace sluice {

namespace {

constexpr const char* slurm_size = "SLURM_STEP_NUM_TASKS";

/// Returns the variable's number, or `otherwise` if there is none.
int number(const Environment& environment, const char* name, int otherwise) {
  const char* const text = environment(name);
  return text != nullptr && *text != '\0' ? std::atoi(text) : otherwise;
}

}  // namespace

Launch find_launch(const Environment& environment) {
  const auto has = [&](const char* name) { return environment(name) != nullptr; };
  const auto launch = [&](const char* launcher, const char* rank, const char* size) {
    return Launch{.launcher = launcher,
                  .size_by = size,
                  .rank = number(environment, rank, 0),
                  .size = number(environment, size, 0),
                  .pmi = has("OMPI_COMM_WORLD_RANK") || has("PMI_RANK") || has("PMIX_RANK")};
  };
  // SLURM_NTASKS is of the allocation: the shell of salloc has it too. A step has its own number.
  const int tasks = number(environment, slurm_size, 0);
  if (has("OMPI_COMM_WORLD_RANK"))
    return launch("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  if (has("PMI_RANK")) {
    // MPICH's and Intel's mpiexec set these, and so does srun --mpi=pmi2.
    const bool slurm = tasks > 1 && tasks == number(environment, "PMI_SIZE", 0);
    return launch(slurm ? "srun" : "mpiexec", "PMI_RANK", "PMI_SIZE");
  }
  const int world = number(environment, "WORLD_SIZE", 0);
  if (world > 1 && has("LOCAL_RANK")) return launch("torchrun", "RANK", "WORLD_SIZE");
  if (has("PMIX_RANK")) return launch("srun", "PMIX_RANK", slurm_size);
  if (tasks > 1) return launch("srun", "SLURM_PROCID", slurm_size);
  Launch alone;
  // Clusters set it for all containers of a job, whatever runs in them.
  if (world > 1)
    alone.note = fmt::format(
        "WORLD_SIZE is {}, but no launcher started this process: it computes alone; scripts/launch "
        "-n {} starts ranks",
        world, world);
  return alone;
}

std::string wrongly_alone(const Launch& launch, const std::string& library) {
  if (launch.size <= 1) return {};
  const bool open_mpi = library.find("Open MPI") != std::string::npos;
  std::string own = library.substr(0, library.find_first_of(",\n")), help;
  std::ranges::replace(own, '\t', ' ');
  if (launch.launcher == "srun")
    help =
        fmt::format("give srun --mpi={} (srun --mpi=list says what it has), or use scripts/launch",
                    open_mpi ? "pmix" : "pmi2");
  else if (launch.launcher == "torchrun")
    help = fmt::format(
        "ranks find each other by MPI; start them by scripts/launch -n {0}, or mpirun "
        "-n {0}",
        launch.size);
  else
    help = fmt::format("the program has another MPI, {}; start it by the mpirun of that one", own);
  return fmt::format(
      "{} started this as one of {} processes ({}={}), but MPI says that it is alone: {}",
      launch.launcher, launch.size, launch.size_by, launch.size, help);
}

bool has_default_binding(const Environment& environment, const std::vector<std::string>& parent) {
  if (environment("OMPI_COMM_WORLD_RANK") == nullptr || parent.empty()) return false;
  for (const char* name :
       {"OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_hwloc_base_cpu_set",
        "OMPI_MCA_rmaps_base_mapping_policy", "OMPI_MCA_orte_rankfile",
        "PRTE_MCA_hwloc_default_binding_policy", "PRTE_MCA_hwloc_default_cpu_list",
        "PRTE_MCA_rmaps_default_mapping_policy"})
    if (environment(name) != nullptr) return false;
  const std::string_view path = parent.front(), program = path.substr(path.rfind('/') + 1);
  constexpr std::array launchers{"mpirun", "mpiexec", "orterun", "orted", "prterun"};
  if (std::ranges::find(launchers, program) == launchers.end()) return false;
  constexpr std::array asks{"bind-to",  "map-by", "rank-by", "cpu-set", "cpu-list",
                            "rankfile", "rf",     "taskset", "numactl"};
  return std::ranges::none_of(parent, [&](std::string_view word) {
    word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
    return std::ranges::find(asks, word.substr(0, word.find('='))) != asks.end();
  });
}

std::vector<std::string> parent_command() {
  std::ifstream file(fmt::format("/proc/{}/cmdline", getppid()), std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');)
    words.push_back(word);
  return words;
}

void widen_binding(int local_ranks) {
  cpu_set_t mine, launcher;
  if (sched_getaffinity(0, sizeof mine, &mine) != 0 ||
      sched_getaffinity(getppid(), sizeof launcher, &launcher) != 0)
    return;
  // A core may have two hardware threads. What is bound to more was not bound to a core.
  if (CPU_COUNT(&mine) > 2 || CPU_COUNT(&launcher) <= CPU_COUNT(&mine) * local_ranks) return;
  // The system may forbid this. The rank then keeps its binding.
  sched_setaffinity(0, sizeof launcher, &launcher);
}

}  // namespace sluice
