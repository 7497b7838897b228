#include "tests/support/training/ranks.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/skip.h"

namespace sluice::test {

namespace {

constexpr int limit_seconds = 60;

/// Returns "" for a process that has ended, even if it ends during the read, for which a stream's
/// iterator would throw.
std::string command_line(const fs::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::string line(std::size_t{1} << 16, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(file.gcount()));
  return line;
}

RanksResult result_of(ProgramResult ended, const std::string& mark) {
  RanksResult result{std::move(ended), {}, {}};
  std::istringstream lines(result.err);
  bool goes_on = false;
  for (std::string line; std::getline(lines, line);) {
    const bool begins = line.find("train_gpt2: error:") != std::string::npos;
    goes_on = begins || (goes_on && line.starts_with("  "));
    if (begins)
      result.errors.push_back(line);
    else if (goes_on)
      result.errors.back() += "\n" + line;
  }
  // The kernel takes a moment to end what mpirun has killed.
  if (result.timed_out || !eventually([&] { return processes_with(mark).empty(); }))
    result.left_behind = processes_with(mark);
  for (const pid_t pid : result.left_behind)
    ::kill(pid, SIGKILL);
  return result;
}

}  // namespace

std::string shown(int ranks, const Flags& flags) {
  std::string text = std::to_string(ranks) + " ranks";
  for (const auto& [flag, value] : flags)
    text += " " + flag + " " + value;
  return text;
}

bool have_mpirun() {
  if (!std::string(SLUICE_MPIRUN).empty()) return true;
  skip("there is no mpirun");
  return false;
}

Arguments mpirun_flags() {
  return words(SLUICE_MPIRUN_FLAGS);
}

bool launcher_kills_at_once() {
  return mpirun_flags().empty();
}

void RanksResult::require_good() const {
  INFO(err);
  CHECK(errors.empty());
  CHECK(left_behind.empty());
  REQUIRE(exit_code == 0);
}

std::vector<pid_t> processes_with(const std::string& mark) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    const char* const end = name.data() + name.size();
    pid_t pid = 0;
    if (std::from_chars(name.data(), end, pid).ptr != end) continue;
    const std::string line = command_line(entry.path());
    if (line.find(mark) != std::string::npos && fs::path(line.c_str()).filename() == "train_gpt2")
      found.push_back(pid);
  }
  return found;
}

pid_t process_of_rank(int rank, const fs::path& rank_files) {
  pid_t pid = 0;
  REQUIRE(eventually([&] {
    const auto record = read_record(record_path(rank_files, rank));
    if (record) pid = static_cast<pid_t>(record->id.pid);
    return pid > 0;
  }));
  return pid;
}

RankRuns::RankRuns() {
  write_tokens(path() / "t.bin", 1200, 64);
}

Flags RankRuns::flags(const std::string& output, const Flags& changes) const {
  // A peak saves each rank the measurement of one, a third of what a start costs.
  Flags flags{{"--n-layer", "2"},      {"--n-head", "2"},
              {"--n-embd", "32"},      {"--vocab-size", "64"},
              {"--context", "16"},     {"--batch-size", "4"},
              {"--data", at("t.bin")}, {"--output", at(output)},
              {"--threads", "1"},      {"--lr-schedule", "constant"},
              {"--val-every", "0"},    {"--sample-tokens", "0"},
              {"--peak-tflops", "1"}};
  for (const auto& [flag, value] : changes)
    flags[flag] = value;
  std::erase_if(flags, [](const auto& flag) { return flag.second == "-"; });
  return flags;
}

Arguments RankRuns::command(int ranks, const std::string& output, const Flags& changes,
                            const std::string& program) const {
  const std::string path = (fs::path(SLUICE_BIN_DIR) / program).string();
  // The ranks' leftovers in the folder for temporary files are removed with this object. Each job
  // has one of its own: jobs that begin at the same time would make the same folder for mpirun.
  std::string temporary = at("tmp.XXXXXX");
  if (::mkdtemp(temporary.data()) == nullptr) throw std::runtime_error("no temporary folder");
  Arguments all{"/usr/bin/env", "TMPDIR=" + temporary};
  if (ranks > 1) {
    const Arguments given = mpirun_flags();
    all.push_back(SLUICE_MPIRUN);
    all.insert(all.end(), given.begin(), given.end());
    all.insert(all.end(), {"-n", std::to_string(ranks)});
  }
  all.push_back(path);
  for (const auto& [flag, value] : flags(output, changes))
    all.push_back(flag + "=" + value);
  return all;
}

RanksResult RankRuns::run(int ranks, const std::string& output, const Flags& changes,
                          const std::string& program) const {
  Arguments all = command(ranks, output, changes, program);
  const std::string name = all.front();
  all.erase(all.begin());
  return result_of(RunningProgram(name, all).finish(limit_seconds), at(output));
}

std::vector<RanksResult> RankRuns::run(const std::vector<RankJob>& jobs) const {
  // Among many more the ranks of one would wait for one another until a deadline.
  constexpr std::size_t at_a_time = 8;
  std::vector<RanksResult> results;
  for (std::size_t first = 0; first < jobs.size(); first += at_a_time) {
    std::vector<std::future<RanksResult>> running;
    for (std::size_t i = first; i < std::min(first + at_a_time, jobs.size()); ++i)
      running.push_back(std::async(std::launch::async, [this, &job = jobs[i]] {
        return run(job.ranks, job.output, job.changes, job.program);
      }));
    for (auto& one : running)
      results.push_back(one.get());
  }
  return results;
}

namespace {

/// Returns how many folders of records are there whose ranks have all ended well.
std::ptrdiff_t folders_of_good_jobs() {
  return std::ranges::count_if(fs::directory_iterator("/dev/shm"), [](const auto& entry) {
    if (!entry.path().filename().string().starts_with("sluice-ranks-")) return false;
    const auto records = read_records(entry.path());
    return !records.empty() && std::ranges::all_of(records, [](const RankRecord& r) {
      return r.outcome == RankRecord::Outcome::finished;
    });
  });
}

}  // namespace

void RankRuns::run_well(int ranks, const std::string& output, const Flags& changes) const {
  run_well({{ranks, output, changes}});
}

void RankRuns::run_well(const std::vector<RankJob>& jobs) const {
  const auto results = run(jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    INFO(shown(jobs[i].ranks, jobs[i].changes));
    results[i].require_good();
  }
  // Another job may be about to remove its own.
  CHECK(eventually([] { return folders_of_good_jobs() == 0; }));
}

void refused(const RankRuns& runs, const std::vector<Refusal>& rows) {
  std::vector<RankJob> jobs;
  for (std::size_t i = 0; i < rows.size(); ++i)
    jobs.push_back(
        {rows[i].ranks, "out" + std::to_string(i + 100), rows[i].changes, rows[i].program});
  const auto results = runs.run(jobs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RanksResult& result = results[i];
    INFO(shown(rows[i].ranks, rows[i].changes));
    INFO(result.err);
    CHECK_FALSE(result.timed_out);
    CHECK(result.exit_code == 2);
    CHECK(result.left_behind.empty());
    CHECK_FALSE(fs::exists(runs.path() / jobs[i].output));
    fs::remove_all(runs.path() / jobs[i].output);
    REQUIRE(result.errors.size() == 1);
    for (const std::string& word : rows[i].words)
      CHECK_THAT(result.errors[0], Contains(word));
  }
}

void refused(const RankRuns& runs, int ranks, const Flags& changes,
             const std::vector<std::string>& words, const std::string& program) {
  refused(runs, {{ranks, changes, words, program}});
}

RunningRanks::RunningRanks(const RankRuns& runs, int ranks, const std::string& output,
                           const Flags& changes)
    : mark_(runs.at(output)) {
  Flags all = changes;
  all["--rank-files"] = mark_ + ".ranks";
  const Arguments command = runs.command(ranks, output, all, "train_gpt2");
  // A pipe that nobody empties would hold the ranks. It stays open, since its end is that of the
  // job.
  Arguments shell{"-c", "exec \"$@\" 9>&1 > '" + mark_ + ".out'", "sh"};
  shell.insert(shell.end(), command.begin(), command.end());
  job_.emplace("/bin/sh", shell);
}

RanksResult RunningRanks::finish() {
  return result_of(job_->finish(limit_seconds), mark_);
}

std::map<std::int64_t, double> logged_losses(const fs::path& output) {
  std::map<std::int64_t, double> losses;
  std::istringstream log(read_file(output / "log.jsonl"));
  // A line without its end is still being written.
  for (std::string line; std::getline(log, line) && !log.eof();) {
    const auto event = nlohmann::json::parse(line);
    if (event.at("event") == "train") losses[event.at("step")] = event.at("loss");
  }
  return losses;
}

TrainedFiles trained_files(const fs::path& output) {
  const auto checkpoints = list_checkpoints(output / "checkpoints");
  REQUIRE_FALSE(checkpoints.empty());
  const fs::path model = output / "model" / "model.safetensors";
  return {read_file(checkpoints.back() / "weights.safetensors"),
          read_file(checkpoints.back() / "optimizer.safetensors"),
          fs::exists(model) ? read_file(model) : std::string()};
}

Flags operator+(Flags a, const Flags& b) {
  for (const auto& [flag, value] : b)
    a[flag] = value;
  return a;
}

Flags reference_flags(const Fixture& fixture) {
  const nlohmann::json& hyper = fixture.json().at("hyper");
  const auto number = [&](const char* name) { return hyper.at(name).dump(); };
  return {{"--model", fixture.model().string()},
          {"--n-layer", "-"},
          {"--n-head", "-"},
          {"--n-embd", "-"},
          {"--vocab-size", "-"},
          {"--context", "-"},
          {"--data", fixture.token_file().string()},
          {"--data-order", "sequential"},
          {"--batch-size", number("batch")},
          {"--seq-len", number("seq")},
          {"--steps", number("steps")},
          {"--lr", number("lr")},
          {"--min-lr", number("min_lr")},
          {"--lr-schedule", hyper.at("schedule").get<std::string>()},
          {"--warmup-steps", number("warmup")},
          {"--beta1", number("beta1")},
          {"--beta2", number("beta2")},
          {"--eps", number("eps")},
          {"--weight-decay", number("weight_decay")},
          {"--grad-clip", number("clip")}};
}

}  // namespace sluice::test
