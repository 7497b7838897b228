#include <sched.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/skip.h"
#include "tests/support/training/ranks.h"

// scripts/launch: what it says to each launcher, which cores its ranks have, and how it starts a
// job again; and the cores that the programs take where mpirun binds them.

namespace sluice::test::launch_script_test {
namespace {

constexpr const char* script = SLUICE_SOURCE_DIR "/scripts/launch";

int cores_here() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  return CPU_COUNT(&cores);
}

/// Programs that stand before the machine's own on PATH.
struct Fakes : TempDir {
  void make(const std::string& name, const std::string& lines) const {
    write_file(path() / name, "#!/bin/sh\n" + lines + "\n");
    fs::permissions(path() / name, fs::perms::owner_all);
  }
  ProgramResult run(const Arguments& variables, const Arguments& command) const {
    Arguments all{"-u", "SLURM_JOB_ID", "PATH=" + path().string() + ":" + std::getenv("PATH")};
    all.insert(all.end(), variables.begin(), variables.end());
    all.insert(all.end(), command.begin(), command.end());
    return RunningProgram("/usr/bin/env", all).finish(60);
  }
};

/// The threads that a run's log says it has.
int logged_threads(const fs::path& output) {
  std::istringstream log(read_file(output / "log.jsonl"));
  for (std::string line; std::getline(log, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.at("event") == "start") return event.at("threads");
  }
  return 0;
}

}  // namespace

TEST_CASE("scripts/launch speaks to each launcher in its own words") {
  const Fakes fakes;
  write_file(fakes.path() / "hosts", "# name and ranks\nlocalhost slots=2\n127.0.0.1 slots=2\n");
  const std::string hosts = (fakes.path() / "hosts").string();
  struct Row {
    const char *mpirun, *srun;
    Arguments variables, options;
    std::vector<std::string> has, lacks;
  };
  const Arguments many{"-n", "4", "--hostfile", hosts};
  const Arguments slurm{"SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_CPUS_PER_TASK=3"};
  const Arguments nccl{"NCCL_DEBUG=WARN", "LD_LIBRARY_PATH=/opt/x/lib", "EDITOR=vi"};
  const std::vector<Row> rows{
      {"mpirun (Open MPI) 4.1.4", "", {}, {}, {"mpirun -q ", "-n 2", "--oversubscribe"}, {" -x "}},
      {"mpirun (Open MPI) 5.0.11", "", {}, {}, {"slot:OVERSUBSCRIBE", "-n 2"}, {" -q ", "vader"}},
      {"HYDRA build details:",
       "",
       {},
       {},
       {"mpirun -bind-to none", "fork"},
       {" -q ", "--mca", "--allow"}},
      {"mpirun (Open MPI) 4.1.4",
       "",
       nccl,
       many,
       {"--hostfile " + hosts, "-x NCCL_DEBUG", "-x LD_LIBRARY_PATH", "-n 4"},
       {"isolated", "EDITOR", "--rank-files"}},
      {"mpirun (Open MPI) 5.0.11",
       "",
       nccl,
       many,
       {"--hostfile " + hosts, "-x NCCL_DEBUG"},
       {"btl", "EDITOR"}},
      {"HYDRA build details:",
       "",
       nccl,
       many,
       {"-hosts localhost:2\\,127.0.0.1:2"},
       {"fork", " -x "}},
      {"mpirun (Open MPI) 4.1.4",
       "none cray_shasta pmi2 pmix_v4",
       slurm,
       {"-n", "4"},
       {"srun --mpi=pmix", "-n 4", "--cpus-per-task=3"},
       {"mpirun ", "--as-rank", "--overcommit"}},
      {"mpirun (Open MPI) 4.1.4", "pmix", slurm, {"-n", "5"}, {"--overcommit"}, {"mpirun "}},
      {"HYDRA build details:", "pmix pmi2", slurm, {}, {"srun --mpi=pmi2"}, {"mpirun "}},
      // Slurm without a plugin for this MPI, and hosts that the user chose.
      {"mpirun (Open MPI) 4.1.4", "pmi2", slurm, {}, {"mpirun -q"}, {"srun "}},
      {"mpirun (Open MPI) 4.1.4", "pmix", slurm, many, {"mpirun -q"}, {"srun "}}};
  for (const Row& row : rows) {
    fakes.make("mpirun", std::string("echo '") + row.mpirun + "'");
    fakes.make("srun", std::string("echo 'MPI plugin types are ") + row.srun + "'");
    Arguments command{script, "--bin", SLUICE_BIN_DIR, "--dry-run"};
    command.insert(command.end(), row.options.begin(), row.options.end());
    command.push_back("train_gpt2");
    const ProgramResult result = fakes.run(row.variables, command);
    INFO(row.mpirun << ", " << row.srun << ": " << result.out << result.err);
    CHECK(result.exit_code == 0);
    for (const std::string& words : row.has)
      CHECK_THAT(result.out, Contains(words));
    for (const std::string& words : row.lacks)
      CHECK_THAT(result.out, !Contains(words));
    CHECK((result.err.find("lacks PMIx") != std::string::npos) ==
          (std::string(row.srun) == "pmi2"));
  }
  fakes.make("mpirun", "echo 'mpiexec of something else 1.0'");
  const ProgramResult other = fakes.run({}, {script, "--bin", SLUICE_BIN_DIR, "train_gpt2"});
  CHECK(other.exit_code == 1);
  CHECK_THAT(other.err, Contains("neither Open MPI's nor MPICH's (it says 'mpiexec of something"));
}

TEST_CASE("ranks of scripts/launch divide the cores, and those at their GPU's node") {
  const Fakes fakes;
  // Two nodes of two cores with two threads each, numbered as Intel's are.
  fakes.make("lscpu",
             "printf '#\\n0,0,0\\n1,0,1\\n2,1,2\\n3,1,3\\n4,0,0\\n5,0,1\\n6,1,2\\n7,1,3\\n'");
  fakes.make("taskset", "[ $# = 3 ] && echo $2 > '" + fakes.path().string() +
                            "/bound' || echo \"pid 7's current affinity list: $ALLOWED\"");
  fakes.make("nvidia-smi", "printf \"$BUSES\"");
  // The script looks for devices in a folder of this test.
  const fs::path devices = fakes.path() / "devices";
  for (const auto& [bus, node] :
       {std::pair("0000:1b:00.0", "0"), std::pair("0000:3b:00.0", "0"),
        std::pair("0000:8a:00.0", "1"), std::pair("0000:99:00.0", "-1")}) {
    fs::create_directories(devices / bus);
    write_file(devices / bus / "numa_node", std::string(node) + "\n");
  }
  std::string copy = read_file(script);
  const std::string place = "/sys/bus/pci/devices";
  REQUIRE(copy.find(place) != std::string::npos);
  copy.replace(copy.find(place), place.size(), devices.string());
  write_file(fakes.path() / "launch", copy);
  const auto bound = [&](int rank, int ranks, const std::string& allowed, const std::string& buses,
                         const Arguments& program = {"true"}, const char* kind = "OMPI") {
    write_file(fakes.path() / "bound", "");
    const bool mpich = std::string(kind) == "MPICH";
    Arguments command{"/bin/bash", (fakes.path() / "launch").string(), "--as-rank"};
    command.insert(command.end(), program.begin(), program.end());
    const ProgramResult result = fakes.run(
        {"ALLOWED=" + allowed, "BUSES=" + buses,
         (mpich ? "MPI_LOCALRANKID=" : "OMPI_COMM_WORLD_LOCAL_RANK=") + std::to_string(rank),
         (mpich ? "MPI_LOCALNRANKS=" : "OMPI_COMM_WORLD_LOCAL_SIZE=") + std::to_string(ranks)},
        command);
    INFO(result.err);
    CHECK(result.exit_code == 0);
    const std::string cores = read_file(fakes.path() / "bound");
    return cores.empty() ? cores : cores.substr(0, cores.size() - 1);
  };
  CHECK(bound(0, 2, "0-7", "") == "0,4,1,5");
  CHECK(bound(1, 2, "0-7", "") == "2,6,3,7");
  CHECK(bound(1, 2, "0-7", "", {"true"}, "MPICH") == "2,6,3,7");
  CHECK(bound(2, 3, "0-7", "") == "2,6");
  CHECK(bound(1, 2, "1,3,5", "") == "5");
  CHECK(bound(0, 4, "0-1", "") == "");  // more ranks than cores: they take turns
  const std::string three = "00000000:1B:00.0\\n00000000:3B:00.0\\n00000000:8A:00.0\\n";
  CHECK(bound(0, 3, "0-7", three) == "0,4");
  CHECK(bound(1, 3, "0-7", three) == "1,5");
  CHECK(bound(2, 3, "0-7", three) == "2,6,3,7");
  CHECK(bound(2, 3, "0-7", three, {"echo", "--device", "cpu"}) == "2,6");
  // A GPU whose node is not known.
  CHECK(bound(1, 2, "0-7", "00000000:8A:00.0\\n00000000:99:00.0\\n") == "2,6,3,7");
}

TEST_CASE("ranks of scripts/launch are bound to cores of their own if there are enough") {
  if (!have_mpirun()) return;
  if (mpirun_flags().empty()) return skip("MPICH binds no rank unasked");
  const int cores = cores_here();
  if (cores < 2) return skip("there is one core");
  const Fakes temporary;
  const auto lists = [&](int ranks) {
    const ProgramResult result =
        temporary.run({"TMPDIR=" + temporary.path().string()},
                      {script, "--bin", "/usr/bin", "-n", std::to_string(ranks), "grep",
                       "Cpus_allowed_list", "/proc/self/status"});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK((result.err.find("launch: note: " + std::to_string(ranks) + " ranks take turns on") !=
           std::string::npos) == (ranks > cores));
    std::map<std::string, int> count;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);)
      ++count[line];
    return count;
  };
  CHECK(lists(2).size() == 2);
  const auto together = lists(cores + 1);
  REQUIRE(together.size() == 1);
  CHECK(together.begin()->second == cores + 1);
}

TEST_CASE("scripts/launch starts a job again that has lost a rank, from its newest checkpoint") {
  if (!have_mpirun()) return;
  const RankRuns runs;
  const auto launch = [&](const std::string& output, const Arguments& options,
                          const Flags& changes) {
    Arguments all{"TMPDIR=" + runs.path().string(), script, "-n", "2", "--bin", SLUICE_BIN_DIR};
    all.insert(all.end(), options.begin(), options.end());
    all.push_back("train_gpt2");
    for (const auto& [flag, value] : runs.flags(output, changes))
      all.insert(all.end(), {flag, value});
    return RunningProgram("/usr/bin/env", all).finish(100);
  };
  const Flags six{{"--steps", "6"}, {"--save-every", "2"}};
  const ProgramResult whole = launch("whole", {}, six);
  INFO(whole.err);
  REQUIRE(whole.exit_code == 0);
  // --resume never, of the command and of a file, would refuse the checkpoints of the first start.
  write_file(runs.path() / "never.toml", "resume = \"never\"\n");
  const ProgramResult killed = launch("killed", {"--max-restarts", "2"},
                                      six + Flags{{"--inject", "rank=1,op=80,kind=kill"},
                                                  {"--resume", "never"},
                                                  {"--config", runs.at("never.toml")}});
  INFO(killed.err);
  CHECK(killed.exit_code == 0);
  CHECK_THAT(killed.err, Contains("launch: restart 1 of 2 after exit code ") &&
                             !Contains("restart 2") && Contains("rank 1 (pid "));
  CHECK_THAT(killed.out, Contains("resumed      ") && Contains("(step 4)"));
  CHECK(trained_files(runs.path() / "killed") == trained_files(runs.path() / "whole"));

  // Wrong use is not started again.
  const ProgramResult wrong = launch("wrong", {"--max-restarts", "2"}, {{"--batch-size", "3"}});
  CHECK(wrong.exit_code == 2);
  CHECK_THAT(wrong.err, !Contains("restart"));
}

TEST_CASE("scripts/launch gives up after the last restart, with the job's exit code") {
  if (!have_mpirun()) return;
  const Fakes fakes;
  fakes.make("train_gpt2", "echo \"started $*\"; exit $CODE");
  const auto launch = [&](const char* code) {
    return fakes.run(
        {"TMPDIR=" + fakes.path().string(), std::string("CODE=") + code},
        {script, "--bin", fakes.path().string(), "--max-restarts", "2", "train_gpt2", "--inject",
         "rank=0,op=9,kind=kill", "--output", (fakes.path() / "out").string()});
  };
  const ProgramResult lost = launch("7");
  INFO(lost.err);
  CHECK(lost.exit_code == 7);
  CHECK_THAT(lost.err, Contains("restart 1 of 2 after exit code 7") && Contains("restart 2 of 2") &&
                           !Contains("restart 3"));
  // A fault that a test asks for comes once.
  CHECK_THAT(lost.out, Contains("started --inject rank=0,op=9,kind=kill --output ") &&
                           Contains("started --output "));
  const ProgramResult numbers = launch("3");
  CHECK(numbers.exit_code == 3);
  CHECK_THAT(numbers.err, !Contains("restart"));
}

TEST_CASE("scripts/launch starts no job again that its user has stopped") {
  if (!have_mpirun()) return;
  const Fakes fakes;
  const std::string in = fakes.path().string();
  // It knows no SIGUSR1, and so ends by it.
  fakes.make("train_gpt2", "touch '" + in + "/started'; exec sleep 100");
  RunningProgram job("/usr/bin/env", {"TMPDIR=" + in, script, "--bin", in, "--max-restarts", "2",
                                      "train_gpt2", "--output", in + "/out"});
  REQUIRE(eventually([&] { return fs::exists(fakes.path() / "started"); }));
  job.send(SIGTERM);
  const ProgramResult result = job.finish(60);
  INFO(result.err);
  CHECK(result.exit_code > 3);
  CHECK_THAT(result.err, Contains("asking the ranks to stop") && !Contains("restart"));
}

TEST_CASE("scripts/launch takes out what Open MPI 5 explains, and nothing that ranks say") {
  const Fakes fakes;
  const std::string rule(70, '-');
  write_file(fakes.path() / "said", "x: error: first\n" + rule +
                                        "\nprterun detected that one or more processes exited\n" +
                                        "x: error: in between\n   Exit code:    2\n" + rule + "\n" +
                                        rule + "\nThe host has no room.\n" + rule + "\nx: last");
  fakes.make("mpirun", "[ $1 = --version ] && echo 'mpirun (Open MPI) 5.0.11' && exit; cat '" +
                           (fakes.path() / "said").string() + "' >&2; exit 2");
  fakes.make("train_mlp", "");
  const ProgramResult result = fakes.run({}, {script, "--bin", fakes.path().string(), "train_mlp"});
  CHECK(result.exit_code == 2);
  CHECK(result.err == "x: error: first\nx: error: in between\n" + rule +
                          "\nThe host has no room.\n" + rule + "\nx: last\n");
}

TEST_CASE("scripts/launch starts nothing again in Slurm if the first task was used wrongly") {
  const Fakes fakes;
  fakes.make("mpirun", "echo 'mpirun (Open MPI) 4.1.4'");
  // srun's code is that of the tasks that it ended.
  fakes.make("srun",
             "case $* in *list*) echo pmix; exit ;; esac\n"
             "echo 'train_gpt2: error: wrong' >&2\n"
             "echo 'srun: error: node1: task 0: Exited with exit code 2' >&2\n"
             "echo 'srun: error: node2: task 1: Exited with exit code 9' >&2\n"
             "exit 143");
  const std::string output = (fakes.path() / "run").string();
  const ProgramResult result = fakes.run(
      {"SLURM_JOB_ID=7", "SLURM_NTASKS=2"},
      {script, "--bin", SLUICE_BIN_DIR, "--max-restarts", "2", "train_gpt2", "--output", output});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Contains("error: wrong") && Contains("task 1: Exited"));
  CHECK_THAT(result.err, !Contains("restart"));
}

TEST_CASE("scripts/launch names a host that cannot be reached") {
  const Fakes fakes;
  write_file(fakes.path() / "hosts", "localhost slots=1\n192.0.2.77 slots=1");
  fakes.make("mpirun", "[ $1 = --version ] && echo 'mpirun (Open MPI) 4.1.4' || exit 1");
  fakes.make("ssh",
             "[ $1 = -G ] && exit; echo 'banner'; "
             "echo 'ssh: connect to host 192.0.2.77 port 22: Connection refused' >&2; exit 255");
  const std::string hosts = (fakes.path() / "hosts").string();
  const Arguments command{script, "--bin", SLUICE_BIN_DIR, "--hostfile", hosts, "train_gpt2"};
  const ProgramResult refused = fakes.run({}, command);
  CHECK(refused.exit_code == 1);
  CHECK(refused.err == "launch: error: --hostfile " + hosts +
                           ": the host '192.0.2.77' cannot be reached: ssh: connect to host "
                           "192.0.2.77 port 22: Connection refused\n");
  // Another way to reach hosts was chosen.
  CHECK(fakes.run({"OMPI_MCA_plm_rsh_agent=/opt/agent"}, command).err == "");
}

TEST_CASE("a rank that mpirun binds to a core unasked has its share of the cores") {
  if (!have_mpirun()) return;
  if (mpirun_flags().empty()) return skip("MPICH binds no rank unasked");
  const int cores = cores_here();
  if (cores < 2) return skip("there is one core");
  const RankRuns runs;
  const auto threads = [&](const std::string& output, const Arguments& before, int ranks,
                           const Arguments& options) {
    Arguments all{"TMPDIR=" + runs.path().string()};
    all.insert(all.end(), before.begin(), before.end());
    all.insert(all.end(), {SLUICE_MPIRUN, "--allow-run-as-root", "-n", std::to_string(ranks)});
    all.insert(all.end(), options.begin(), options.end());
    all.push_back(SLUICE_BIN_DIR "/train_gpt2");
    for (const auto& [flag, value] :
         runs.flags(output, {{"--steps", "1"}, {"--threads", "-"}, {"--save", "never"}}))
      all.push_back(flag + "=" + value);
    const ProgramResult result = RunningProgram("/usr/bin/env", all).finish(60);
    INFO(result.err);
    CHECK(result.exit_code == 0);
    return logged_threads(runs.path() / output);
  };
  // A step of Slurm around it says nothing of mpirun's ranks.
  CHECK(threads("one", {"SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=0"}, 1, {}) == cores);
  CHECK(threads("two", {}, 2, {}) == cores / 2);
  CHECK(threads("asked", {}, 1, {"--bind-to", "hwthread"}) == 1);
  CHECK(threads("taskset", {"taskset", "-c", "0"}, 1, {}) == 1);
}

TEST_CASE("WORLD_SIZE without a launcher is worth a note, and the training goes on") {
  const RankRuns runs;
  Arguments all{"WORLD_SIZE=2", SLUICE_BIN_DIR "/train_gpt2"};
  for (const auto& [flag, value] : runs.flags("out", {{"--steps", "1"}}))
    all.push_back(flag + "=" + value);
  const ProgramResult result = RunningProgram("/usr/bin/env", all).finish(60);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.err, StartsWith("train_gpt2: note: WORLD_SIZE is 2, but no launcher started"));
  CHECK(logged_losses(runs.path() / "out").size() == 1);
}

}  // namespace sluice::test::launch_script_test
