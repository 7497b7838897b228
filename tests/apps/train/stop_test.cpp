#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/checkpoint/save_cadence.h"
#include "apps/cli/stop_signal.h"
#include "kernels/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// The ways of asking a run to stop, and what it does then. tests/faults/signals_test.cpp shows that
// no signal disturbs the computation; this file shows that none can arrive in a computing thread.

namespace sluice::test::stop_test {
namespace {

struct ThreadStatus {
  std::string name;
  std::uint64_t blocked = 0;

  bool blocks(int signal) const { return (blocked >> (signal - 1) & 1) != 0; }
};

std::vector<ThreadStatus> threads_of(pid_t process) {
  std::vector<ThreadStatus> all;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", process))) {
    std::ifstream status(task.path() / "status");
    ThreadStatus thread;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("Name:\t")) thread.name = line.substr(6);
      if (line.starts_with("SigBlk:\t")) thread.blocked = std::stoull(line.substr(8), nullptr, 16);
    }
    // A thread that has just ended, such as a save's, could not be read.
    if (!thread.name.empty()) all.push_back(thread);
  }
  return all;
}

/// A run of the default precision that goes on until it is stopped.
struct EndlessRun {
  explicit EndlessRun(const Arguments& more = {}) {
    Arguments all = words(
        "--n-layer 1 --n-head 2 --n-embd 16 --context 16 --batch-size 4 "
        "--steps 1000000 --val-every 0 --sample-tokens 0 --threads 3 --quiet");
    write_file(folder.path() / "t.txt", std::string(4000, 'x') + "yz");
    for (const std::string& argument : {std::string("--data"), (folder.path() / "t.txt").string(),
                                        std::string("--output"), output().string()})
      all.push_back(argument);
    all.insert(all.end(), more.begin(), more.end());
    program.emplace("train_gpt2", all);
  }

  fs::path output() const { return folder.path() / "run"; }
  bool has_logged(const std::string& text) const {
    const fs::path log = output() / "log.jsonl";
    return eventually(
        [&] { return fs::exists(log) && read_file(log).find(text) != std::string::npos; });
  }

  TempDir folder;
  std::optional<RunningProgram> program;
};

}  // namespace

TEST_CASE("no thread that computes can be interrupted by a signal") {
  EndlessRun run({"--save", "background", "--save-every", "1"});
  REQUIRE(run.has_logged("\"checkpoint\""));
  const auto threads = threads_of(run.program->id());
  CHECK(threads.size() >= 4);  // one receives, three compute
  int receivers = 0;
  for (const ThreadStatus& thread : threads) {
    CAPTURE(thread.name);
    const bool receives = thread.name == "sluice-signals";
    receivers += receives ? 1 : 0;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGPWR})
      CHECK((receives || thread.blocks(signal)));  // in sigwait() no handler runs either
    for (const int signal : {SIGPROF, SIGALRM, SIGVTALRM, SIGIO, SIGQUIT, SIGCHLD, SIGRTMIN})
      CHECK(thread.blocks(signal) == !receives);
    // Other threads may just be starting, which glibc does with all signals blocked.
    for (const int signal : {SIGSEGV, SIGABRT, SIGTSTP, SIGCONT})
      CHECK_FALSE((receives && thread.blocks(signal)));
  }
  CHECK(receivers == 1);
}

TEST_CASE("a stop is answered at once, saves, and exports the model") {
  EndlessRun run;
  REQUIRE(run.has_logged("\"train\""));
  for (const int signal : {SIGPROF, SIGALRM, SIGVTALRM, SIGIO})
    run.program->send(signal);  // nobody has asked for these: they do nothing
  run.program->send(SIGINT);
  run.program->send(SIGINT);  // of a program in between that passes it on
  const ProgramResult result = run.program->finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("SIGINT: finishing "));
  CHECK_THAT(result.out, Contains("then saving; a second SIGINT ends at once (no step is saved)"));
  CHECK(fs::exists(run.output() / "model/model.safetensors"));
  CHECK(fs::exists(run.output() / "model/config.json"));
  const std::string log = read_file(run.output() / "log.jsonl");
  CHECK_THAT(log, Contains("\"stopped_by\":\"SIGINT\""));
}

TEST_CASE("batch systems' signals stop a run too, and a hang-up that is ignored does not") {
  for (const int signal : {SIGUSR2, SIGXCPU}) {
    EndlessRun run;
    REQUIRE(run.has_logged("\"train\""));
    run.program->send(signal);
    CHECK(run.program->finish().exit_code == 0);
  }
  std::signal(SIGHUP, SIG_IGN);  // as nohup does; the program inherits it
  EndlessRun run;
  std::signal(SIGHUP, SIG_DFL);
  REQUIRE(run.has_logged("\"train\""));
  run.program->send(SIGHUP);
  run.program->send(SIGTERM);
  const ProgramResult result = run.program->finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("SIGTERM: finishing"));
  CHECK(result.out.find("SIGHUP") == std::string::npos);
}

TEST_CASE("a signal that comes when the training has ended leaves the exit code alone") {
  const auto status_of = [](const std::function<void()>& before_signal,
                            std::chrono::milliseconds waits) {
    const pid_t child = ::fork();
    if (child == 0) {
      receive_signals_on_one_thread();
      before_signal();
      ::kill(::getpid(), SIGUSR1);
      for (sigset_t pending; ::sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1;)
        std::this_thread::yield();  // until the receiving thread has taken it
      std::this_thread::sleep_for(waits);
      ::_exit(7);
    }
    REQUIRE(child > 0);
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  };
  const int ended = status_of(
      [] {
        const StopSignal signal([](const char*, bool, const std::string&) { return ""; },
                                [](const std::string&) {});
      },
      std::chrono::milliseconds(300));
  CHECK((WIFEXITED(ended) && WEXITSTATUS(ended) == 7));
  const int never = status_of([] {}, std::chrono::minutes(1));
  CHECK((WIFSIGNALED(never) && WTERMSIG(never) == SIGUSR1));
}

TEST_CASE("a program that cannot go on later ends by a signal as usual") {
  const TempDir folder;
  const fs::path log = folder.path() / "mlp/log.jsonl";
  RunningProgram program("train_mlp", {"--steps", "1000000000", "--output", log.parent_path()});
  REQUIRE(eventually([&] { return fs::exists(log); }));
  program.send(SIGTERM);
  CHECK(program.finish().signal == SIGTERM);
}

TEST_CASE("the cadence of saves takes steps, times and auto") {
  CHECK(SaveCadence(std::nullopt).text() == "every 5 minutes");
  CHECK(SaveCadence("0").text() == "at the end");
  CHECK(SaveCadence("1").text() == "every step");
  CHECK(SaveCadence("500").text() == "every 500 steps");
  CHECK(SaveCadence("90s").text() == "every 90 seconds");
  CHECK(SaveCadence("60s").text() == "every minute");
  CHECK(SaveCadence("120min").text() == "every 2 hours");
  const SaveCadence steps("500");
  CHECK(steps.due_by_steps(1000));
  CHECK_FALSE(steps.due_by_steps(1001));
  CHECK_FALSE(steps.due_by_time());
  CHECK_FALSE(SaveCadence("0").due_by_steps(7));
  CHECK_FALSE(SaveCadence("1h").due_by_steps(7));
  SaveCadence slow(std::nullopt);
  slow.saved(60e3);  // a minute a save: at most a twentieth of the time
  CHECK(slow.text() == "every 20 minutes");
  slow.saved(1);
  CHECK(slow.text() == "every 5 minutes");
  SaveCadence given("30s");
  given.saved(60e3);  // what was asked for stays
  CHECK(given.text() == "every 30 seconds");
  for (const char* wrong : {"", "-1", "5 min", "5m", "0s", "min", "1e3", "99999999999999999999"})
    CHECK_THROWS_AS(SaveCadence(wrong), Error);
}

TEST_CASE("checkpoints are due by the clock") {
  EndlessRun run({"--save-every", "1s"});
  REQUIRE(run.has_logged("\"checkpoint\""));
  run.program->send(SIGTERM);
  CHECK(run.program->finish().exit_code == 0);
}

}  // namespace sluice::test::stop_test
