#include "parallel/comm/transport/launcher.h"
#include "tests/support/catch.h"

#include <map>
#include <string>
#include <vector>

// What the environment tells of the launcher, and which processes must not train alone.

namespace sluice::test::launcher_test {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr const char* open_mpi = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4";
constexpr const char* mpich = "MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 2022\n";

Environment environment(const Variables& variables) {
  return [&variables](const char* name) {
    const auto found = variables.find(name);
    return found != variables.end() ? found->second.c_str() : nullptr;
  };
}

/// One of two processes that srun has started; the shell of an allocation has SLURM_NTASKS too.
const Variables step{{"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_PROCID", "1"},
                     {"SLURM_STEP_ID", "0"}};
const Variables alone_in_mpirun{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b)
    a[name] = value;
  return a;
}

std::string refusal(const Variables& variables, const char* library = open_mpi) {
  return wrongly_alone(find_launch(environment(variables)), library);
}

}  // namespace

TEST_CASE("a process that is one of several by its launcher must not be alone in MPI") {
  struct Row {
    Variables variables;
    int rank;
    std::vector<std::string> words;
    const char* library = open_mpi;
  };
  const std::vector<Row> rows{
      {step, 1, {"srun started", "SLURM_STEP_NUM_TASKS=2", "srun --mpi=pmix", "scripts/launch"}},
      {step, 1, {"srun started", "srun --mpi=pmi2"}, mpich},
      {step + Variables{{"PMIX_RANK", "1"}}, 1, {"srun started", "SLURM_STEP_NUM_TASKS=2"}},
      {step + Variables{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, 1, {"srun started", "--mpi=pmix"}},
      {{{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}},
       3,
       {"mpiexec started", "one of 8", "PMI_SIZE=8", "another MPI, Open MPI v4.1.4;"}},
      {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       1,
       {"Open MPI's mpirun started", "OMPI_COMM_WORLD_SIZE=2", "MPICH Version: 4.0.2;"},
       mpich},
      {{{"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"RANK", "3"}},
       3,
       {"torchrun started", "WORLD_SIZE=4", "scripts/launch -n 4"}},
      // torchrun within a step of one task for each node.
      {step + Variables{{"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}, {"RANK", "9"}},
       9,
       {"torchrun started", "one of 16"}}};
  for (const Row& row : rows) {
    const Launch launch = find_launch(environment(row.variables));
    const std::string said = wrongly_alone(launch, row.library);
    INFO(said);
    CHECK(launch.rank == row.rank);
    CHECK(launch.pmi ==
          (row.variables.contains("PMI_RANK") || row.variables.contains("PMIX_RANK") ||
           row.variables.contains("OMPI_COMM_WORLD_RANK")));
    CHECK(said.size() <= 270);  // a program's name stands before it
    CHECK(said.find('\n') == std::string::npos);
    for (const std::string& word : row.words)
      CHECK_THAT(said, Contains(word));
  }
}

TEST_CASE("the innermost launcher says whether a process is rightly alone") {
  CHECK(refusal({}) == "");
  CHECK(refusal(alone_in_mpirun) == "");
  CHECK(refusal(step + alone_in_mpirun) == "");
  CHECK(refusal(step + Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}) == "");
  CHECK(refusal(step + Variables{{"SLURM_STEP_NUM_TASKS", "1"}}) == "");
  CHECK(refusal(alone_in_mpirun +
                Variables{{"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"RANK", "0"}}) == "");
  // The shell of an allocation is no process of a step.
  CHECK(find_launch(environment({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}})).rank == -1);
  CHECK(refusal({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}) == "");
}

TEST_CASE("WORLD_SIZE without LOCAL_RANK is worth a note") {
  const Launch launch = find_launch(environment({{"WORLD_SIZE", "2"}, {"RANK", "1"}}));
  CHECK(launch.rank == -1);
  CHECK(wrongly_alone(launch, open_mpi) == "");
  CHECK_THAT(launch.note, Contains("WORLD_SIZE is 2") && Contains("scripts/launch -n 2"));
  CHECK(find_launch(environment({{"WORLD_SIZE", "1"}})).note == "");
  CHECK(find_launch(environment({})).note == "");
  // Of a process that MPI knows nothing needs to be said.
  CHECK(find_launch(environment(alone_in_mpirun + Variables{{"WORLD_SIZE", "2"}})).note == "");
}

TEST_CASE("a binding that nobody asked for is told from one that somebody did") {
  const auto by_default = [](const Variables& more, const std::vector<std::string>& parent) {
    const Variables all = alone_in_mpirun + more;
    return has_default_binding(environment(all), parent);
  };
  CHECK(by_default({}, {"mpirun", "-n", "2", "train_gpt2"}));
  CHECK(by_default({}, {"/opt/bin/prterun", "-n", "2", "train_gpt2"}));
  CHECK(by_default({}, {"/usr/bin/orted", "-mca", "ess", "env"}));
  CHECK_FALSE(by_default({{"OMPI_MCA_hwloc_base_binding_policy", "core"}}, {"orted"}));
  CHECK_FALSE(by_default({{"OMPI_MCA_rmaps_base_mapping_policy", "slot:PE=2"}}, {"mpirun"}));
  CHECK_FALSE(by_default({{"PRTE_MCA_hwloc_default_binding_policy", "core"}}, {"prterun"}));
  CHECK_FALSE(by_default({}, {"prterun", "--bind-to", "core", "train_gpt2"}));
  CHECK_FALSE(by_default({}, {"prterun", "-n", "2", "--map-by=slot:PE=2", "train_gpt2"}));
  CHECK_FALSE(by_default({}, {"mpirun", "-n", "2", "numactl", "--cpunodebind=0", "train_gpt2"}));
  // Who started it is not known, or did not bind it.
  CHECK_FALSE(by_default({}, {"bash", "start.sh"}));
  CHECK_FALSE(by_default({}, {"prted"}));
  CHECK_FALSE(by_default({}, {}));
  CHECK_FALSE(has_default_binding(environment(step), {"mpirun"}));
}

}  // namespace sluice::test::launcher_test
