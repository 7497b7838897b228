#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "tests/faults/trace.h"
#include "tests/support/catch.h"

// Signals at awkward moments: before training, while a checkpoint is written, at the end; once and
// twice; to a process alone, to mpirun, to one rank, to all. The job ends as documented, its newest
// checkpoint is whole, and a run that was asked to stop has lost no step.

namespace sluice::test::signals_test {
namespace {

using namespace std::chrono_literals;

enum class Moment { start, save, end };
enum class Whom { program, mpirun, one, all };
constexpr const char* moments[] = {"at the start", "during a save", "at the end"};
constexpr const char* targets[] = {"the process", "mpirun", "one rank", "all ranks"};

struct Row {
  int signal;
  int times;
  Moment moment;
  Whom whom;

  bool asks() const { return times == 1; }
  std::string text() const {
    return fmt::format("{} {} {}, to {}", sigabbrev_np(signal), times == 1 ? "once" : "twice",
                       moments[static_cast<int>(moment)], targets[static_cast<int>(whom)]);
  }
};

void send(const Row& row, const Job& job, std::mt19937_64& random) {
  const auto ranks = job.ranks();
  if (row.whom == Whom::mpirun)
    job.send(row.signal);
  else if (row.whom == Whom::one && !ranks.empty())
    ::kill(ranks[random() % ranks.size()], row.signal);
  else
    for (const pid_t pid : ranks)
      ::kill(pid, row.signal);
}

/// The first moment at which this is true; false where the job has ended before.
template <class Condition>
bool until(const Job& job, Condition&& condition) {
  bool seen = false;
  return eventually([&] {
           if (condition()) return true;
           seen = seen || !job.ranks().empty();
           return seen && job.ranks().empty();
         }) &&
         condition();
}

std::string disturbed(FaultRuns& runs, const Row& row, std::uint64_t round) {
  auto random = draws(round);
  const fs::path output = runs.path() / "signalled";
  Launch launch;
  // Slowly written: what is to happen during a save has time to.
  if (row.moment != Moment::start)
    launch.tracer = injecting("fsync", by_form("delay_enter=15000", "delay_enter=100000"));
  Job job(runs, "signalled", launch);
  if (row.moment == Moment::start) {
    until(job, [&] { return !job.ranks().empty(); });
    const double share = std::uniform_real_distribution(0.0, 0.6)(random);
    std::this_thread::sleep_for(std::chrono::duration<double>(share * runs.seconds()));
  } else if (row.moment == Moment::save) {
    until(job, [&] { return !temporaries(output / "checkpoints").empty(); });
  } else {
    until(job, [&] { return steps_logged(output) >= 5; });
  }
  for (int i = 0; i < row.times; ++i) {
    if (i > 0) std::this_thread::sleep_for(600ms);  // sooner they are one request
    send(row, job, random);
  }
  const Ended ended = job.finish(30);
  Problems problems;
  problems.require(!ended.timed_out, "the job hung");
  problems.require(ended.left_behind.empty(), "processes were left behind");
  const auto done = steps_logged(output);
  const std::int64_t saved = newest_step(output);
  const bool ended_by_it = ended.signal == row.signal || ended.exit_code == 128 + row.signal;
  // mpirun asks its ranks by SIGTERM and kills them after a second; its own exit code is 1 or that
  // of the rank that it heard of first.
  const bool hard = row.whom == Whom::mpirun && row.signal != SIGUSR1;
  const bool deaf = row.moment == Moment::start;  // before there is a handler
  if (row.asks() && !hard && !deaf)
    problems.require(ended.exit_code == 0, fmt::format("exit code {}, signal {}: {}",
                                                       ended.exit_code, ended.signal, ended.err));
  else
    problems.require(hard || ended.exit_code == 0 || ended_by_it || runs.kind().ranks > 1,
                     fmt::format("exit code {}, signal {}", ended.exit_code, ended.signal));
  if (ended.exit_code == 0)
    problems.require(saved == done, fmt::format("{} steps are done, {} saved", done, saved));
  problems.add(runs.keeps_word("signalled"));
  problems.add(runs.goes_on("signalled"));
  runs.forget("signalled");
  return problems.text();
}

std::vector<Row> rows_of(const std::vector<Whom>& whom) {
  std::vector<Row> rows;
  for (const Whom target : whom)
    for (const int signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP})
      for (const int times : {1, 2})
        for (const Moment moment : {Moment::start, Moment::save, Moment::end})
          rows.push_back({signal, times, moment, target});
  return rows;
}

}  // namespace

TEST_CASE("signals to a process at awkward moments lose no step") {
  if (!have_strace()) return;
  FaultRuns runs(kinds().front());
  Tally tally("g: signals, 1 rank");
  std::uint64_t round = 0;
  for (const Row& row : rows_of({Whom::program})) {
    ++round;
    // The short form has each signal, each moment, once and twice, but not each with each.
    if (long_form() || round == 2 || round == 9 || round == 17 || round == 19)
      tally.round(row.text(), disturbed(runs, row, round));
  }
}

TEST_CASE("signals to mpirun and to ranks at awkward moments lose no step") {
  if (!have_mpirun() || !have_strace()) return;
  FaultRuns runs({"2 ranks", 2, {{"--micro-batch", "1"}}, true});
  Tally tally("g: signals, 2 ranks");
  std::vector<Row> rows{{SIGUSR1, 1, Moment::save, Whom::one},
                        {SIGTERM, 1, Moment::save, Whom::mpirun}};
  if (long_form()) rows = rows_of({Whom::mpirun, Whom::one, Whom::all});
  std::uint64_t round = 100;
  for (const Row& row : rows)
    tally.round(row.text(), disturbed(runs, row, ++round));
}

namespace {

/// The default model, for a few steps: in fp32 most of its time goes to products whose library
/// keeps data below the stack pointer, where a signal handler's frame would be.
struct Computing {
  Flags changes;
  int ranks;

  std::string text() const {
    return fmt::format("{}, {} threads, {} ranks", changes.at("--precision"),
                       changes.at("--threads"), ranks);
  }
};

std::vector<Computing> computings(const std::string& data) {
  std::vector<Computing> all;
  for (const int ranks : {1, 2})
    for (const char* precision : {"fp32", "bf16"})
      for (const char* threads : {"2", "1"})
        // In the short form fp32 with two threads and with two ranks, and bf16 with one thread.
        if (const bool wide = precision[0] == 'f', two = threads[0] == '2';
            ranks == 1 ? in_form(2, {wide, two}) : in_form(2, {wide, 1}) && !two && have_mpirun())
          all.push_back({{{"--n-layer", "4"},
                          {"--n-head", "4"},
                          {"--n-embd", "128"},
                          {"--context", "128"},
                          {"--batch-size", by_form("8", "16")},
                          {"--micro-batch", by_form("4", "8")},
                          {"--steps", by_form("4", "10")},
                          {"--save-every", "0"},
                          {"--dropout", "0"},
                          {"--data", data},
                          {"--precision", precision},
                          {"--threads", threads}},
                         ranks});
  return all;
}

/// Signals of all kinds, to every rank, at a moment that is drawn; each kind once, since a second
/// one of a kind ends the run, but SIGPROF many times.
std::string interrupted(FaultRuns& runs, const Computing& computing, std::uint64_t round) {
  auto random = draws(round);
  const fs::path output = runs.path() / "interrupted";
  Job job(runs, "interrupted", {.flags = computing.changes});
  const auto first = static_cast<std::int64_t>(1 + random() % by_form(2U, 8U));
  until(job, [&] { return steps_logged(output) >= first; });
  std::vector<int> signals{SIGINT, SIGTERM, SIGUSR1};
  std::ranges::shuffle(signals, random);
  for (int i = 0; i < 12; ++i) {
    const int signal = i % 4 == 3 ? signals[static_cast<std::size_t>(i / 4)] : SIGPROF;
    for (const pid_t pid : job.ranks())
      ::kill(pid, signal);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
  }
  const Ended ended = job.finish(60);
  Problems problems;
  problems.require(!ended.timed_out, "the job hung");
  problems.require(ended.exit_code == 0, fmt::format("exit code {}, signal {}: {}", ended.exit_code,
                                                     ended.signal, ended.err));
  problems.require(newest_step(output) == steps_logged(output), "a step was not saved");
  problems.add(runs.goes_on("interrupted", computing.changes));
  runs.forget("interrupted");
  return problems.text();
}

}  // namespace

TEST_CASE("signals while a run computes neither end it nor change a bit") {
  std::string text;
  for (int i = 0; text.size() < 20000; ++i)
    text += "whether 'tis nobler in the mind " + std::to_string(i * i) + " to suffer\n";
  std::map<int, FaultRuns> runs;
  const auto runs_of = [&](int ranks) -> FaultRuns& {
    return runs.try_emplace(ranks, Kind{"ranks", ranks, {}, true}).first->second;
  };
  write_file(runs_of(1).path() / "long.txt", text);
  const auto all = computings(runs_of(1).at("long.txt"));
  Tally tally("g: signals while computing");
  // The short form is enough to see a handler on a thread that computes nearly every time.
  const std::size_t rounds = by_form(all.size(), std::size_t{200});
  for (std::size_t round = 0; round < rounds; ++round) {
    const Computing& computing = all[round % all.size()];
    tally.round(computing.text(), interrupted(runs_of(computing.ranks), computing, round));
  }
}

}  // namespace sluice::test::signals_test
