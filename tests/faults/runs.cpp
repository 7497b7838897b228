#include "tests/faults/runs.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "apps/cli/shell_quote.h"
#include "tests/support/catch.h"

namespace sluice::test {

namespace {

const std::vector<Kind> all_kinds{
    {"1 rank", 1, {}, true},
    {"1 rank, async", 1, {{"--save", "background"}}, true, true},
    {"2 ranks", 2, {{"--micro-batch", "1"}}, false},
};

/// The program's own sentences, each with what is indented below it. mpirun says a good deal more.
std::string own_words(const std::string& err) {
  std::istringstream lines(err);
  std::string words;
  bool goes_on = false;
  for (std::string line; std::getline(lines, line);) {
    const bool begins = line.find("train_gpt2: ") != std::string::npos;
    goes_on = begins || (goes_on && line.starts_with("  "));
    if (goes_on) words += line + "\n";
  }
  return words;
}

std::vector<Json> events(const fs::path& output, std::string& problem) {
  std::vector<Json> all;
  if (!fs::exists(output / "log.jsonl")) return all;
  std::istringstream log(read_file(output / "log.jsonl"));
  for (std::string line; std::getline(log, line);) {
    Json event = Json::parse(line, nullptr, false);
    if (event.is_discarded())
      problem = "a line of the log is not JSON: " + line;
    else
      all.push_back(std::move(event));
  }
  return all;
}

}  // namespace

std::vector<Kind> kinds() {
  std::vector<Kind> here;
  for (const auto& kind : all_kinds)
    if ((long_form() || kind.short_form) && (kind.ranks == 1 || have_mpirun()))
      here.push_back(kind);
  return here;
}

fs::path FaultRuns::in_memory() {
  const fs::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK | X_OK) == 0 ? memory : fs::temp_directory_path();
}

FaultRuns::FaultRuns(Kind kind, const fs::path& inside) : TempDir(inside), kind_(std::move(kind)) {
  // 24 windows of 16 tokens to learn from: an epoch ends in the middle of the sixth step.
  std::string text;
  for (int i = 0; text.size() < 430; ++i)
    text += "to be or not to be " + std::to_string(i * i) + ", that is the question\n";
  write_file(path() / "text.txt", text);
}

Flags FaultRuns::flags(const std::string& output, const Flags& changes) const {
  Flags all =
      Flags{{"--n-layer", "2"},         {"--n-head", "2"},        {"--n-embd", "32"},
            {"--context", "16"},        {"--batch-size", "4"},    {"--micro-batch", "2"},
            {"--data", at("text.txt")}, {"--tokenizer", "bytes"}, {"--output", at(output)},
            {"--threads", "1"},         {"--dropout", "0.1"},     {"--lr-schedule", "constant"},
            {"--warmup-steps", "3"},    {"--val-every", "0"},     {"--sample-tokens", "0"},
            {"--steps", "5"},           {"--save-every", "2"},    {"--keep", "1"},
            {"--peak-tflops", "1"}} +
      kind_.flags + changes;
  std::erase_if(all, [](const auto& flag) { return flag.second == "-"; });
  return all;
}

Arguments FaultRuns::command(const std::string& output, const Launch& launch) const {
  Arguments program{(fs::path(SLUICE_BIN_DIR) / "train_gpt2").string()};
  for (const auto& [flag, value] : flags(output, launch.flags))
    program.push_back(flag + "=" + value);
  // The ranks' leftovers in the folder for temporary files are removed with this object.
  Arguments all{"/usr/bin/env", "TMPDIR=" + path().string()};
  if (kind_.ranks > 1) {
    const Arguments given = mpirun_flags();
    all.push_back(SLUICE_MPIRUN);
    all.insert(all.end(), given.begin(), given.end());
    all.insert(all.end(), launch.mpirun.begin(), launch.mpirun.end());
    all.insert(all.end(), {"-n", std::to_string(kind_.ranks)});
  }
  if (kind_.ranks > 1 && !launch.tracer.empty()) {
    // Only the first rank, which writes, is traced. mpirun's own way to say so, a second command
    // behind a colon, makes that of Open MPI 5.0.7 crash.
    std::string script = R"([ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] || exec "$0" "$@"; exec)";
    for (const std::string& word : launch.tracer)
      script += " " + quoted(word);
    all.insert(all.end(), {"/bin/sh", "-c", script + R"( "$0" "$@")"});
  } else {
    all.insert(all.end(), launch.tracer.begin(), launch.tracer.end());
  }
  all.insert(all.end(), program.begin(), program.end());
  return all;
}

Ended FaultRuns::run(const std::string& output, const Launch& launch, int limit_seconds) const {
  return Job(*this, output, launch).finish(limit_seconds);
}

const FaultRuns::Made& FaultRuns::made(const Flags& changes) {
  if (const auto found = made_.find(changes); found != made_.end()) return found->second;
  const std::string output = "undisturbed " + std::to_string(made_.size());
  const Ended ended = run(output, {.flags = changes});
  INFO(ended.err);
  REQUIRE(ended.exit_code == 0);
  Made made{outcome(path() / output), ended.seconds};
  REQUIRE(made.outcome.problem == "");
  REQUIRE(made.outcome.files.size() > 5);
  forget(output);
  return made_.emplace(changes, std::move(made)).first->second;
}

const Outcome& FaultRuns::undisturbed(const Flags& changes) {
  return made(changes).outcome;
}

double FaultRuns::seconds(const Flags& changes) {
  return made(changes).seconds;
}

namespace {

/// The newest step, or that of a checkpoint which is whole but for its name: state.json is its last
/// file.
std::int64_t step_to_go_on_from(const fs::path& output) {
  std::int64_t step = newest_step(output);
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(output / "checkpoints", none)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tmp.") == std::string::npos || name.ends_with(".old") ||
        !fs::exists(entry.path() / "state.json") ||
        fs::exists(output / "checkpoints" / name.substr(0, 13)))
      continue;
    const auto manifest = read_manifest(entry.path());
    if (manifest.lineage.save() > CheckpointHistory(output / "checkpoints").last_save())
      step = manifest.step;
  }
  return step;
}

}  // namespace

std::string FaultRuns::goes_on(const std::string& output, const Flags& changes,
                               bool older_is_right) {
  Problems problems;
  const std::int64_t newest = step_to_go_on_from(path() / output);
  const Ended ended = run(output, {.flags = changes});
  if (ended.exit_code != 0 || ended.timed_out)
    return "the run cannot go on (exit code " + std::to_string(ended.exit_code) + "): " + ended.err;
  problems.require(ended.words.empty(), "an error in a good run: " + ended.words);
  if (!older_is_right) {
    problems.require(ended.out.find("falling back") == std::string::npos,
                     "the newest checkpoint was not whole");
    problems.require(
        newest < 0 || ended.out.find("(step " + std::to_string(newest) + ")") != std::string::npos,
        "it did not go on from step " + std::to_string(newest));
  }
  for (const auto& name : temporaries(path() / output))
    problems.add(name + " was left behind");
  problems.add(difference(outcome(path() / output), undisturbed(changes)));
  return problems.text();
}

std::string FaultRuns::keeps_word(const std::string& output) const {
  const auto said = logged(path() / output, "checkpoint");
  if (said.empty()) return "";
  const auto step = Json::parse(said.back()).at("step").get<std::int64_t>();
  if (newest_step(path() / output) >= step) return "";
  return "the checkpoint of step " + std::to_string(step) +
         " was said to be saved, but is not there";
}

void FaultRuns::forget(const std::string& output) const {
  fs::remove_all(path() / output);
  fs::remove(path() / (output + ".out"));
}

Job::Job(const FaultRuns& runs, const std::string& output, const Launch& launch)
    : mark_(runs.at(output)) {
  // The output goes to a file: a pipe that nobody reads would block the run. The pipe itself stays
  // open until the last process of the job has ended.
  Arguments shell{"-c", launch.before + (launch.before.empty() ? "" : "; ") +
                            "exec \"$@\" 9>&1 > '" + mark_ + ".out'"};
  shell.push_back("sh");
  const Arguments command = runs.command(output, launch);
  shell.insert(shell.end(), command.begin(), command.end());
  program_.emplace("/bin/sh", shell);
}

Ended Job::finish(int limit_seconds) {
  Ended ended{program_->finish(limit_seconds), 0, {}, {}};
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (fs::exists(mark_ + ".out")) ended.out = read_file(mark_ + ".out");
  ended.words = own_words(ended.err);
  // Ranks whose mpirun was killed notice that a moment later, and write until then.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(15);
  do
    ended.left_behind = ranks();
  while (!ended.timed_out && !ended.left_behind.empty() && std::chrono::steady_clock::now() < end);
  for (const pid_t pid : ended.left_behind)
    ::kill(pid, SIGKILL);
  return ended;
}

/// Returns the training state without how often its run has saved, which may differ.
std::string training_state(const std::string& state) {
  Json json = Json::parse(state);
  for (const char* const field : {"lineage", "keep", "crc32"})
    json.erase(field);
  return json.dump();
}

Outcome outcome(const fs::path& output) {
  Outcome found;
  const auto take = [&](const fs::path& folder) {
    if (!fs::is_directory(folder)) return;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string bytes = read_file(entry.path());
      found.files[(folder.filename() / entry.path().filename()).string()] =
          entry.path().filename() == "state.json" ? training_state(bytes) : bytes;
    }
  };
  const auto checkpoints = list_checkpoints(output / "checkpoints");
  if (!checkpoints.empty()) take(checkpoints.back());
  take(output / "model");
  for (const Json& event : events(output, found.problem)) {
    if (event.at("event") == "warning" &&
        event.at("message").get<std::string>().find("lines are missing here") != std::string::npos)
      found.log_has_gap = true;
    if (event.at("event") != "train") continue;
    const std::string values = Json{event.at("loss"), event.at("grad_norm"), event.at("lr")}.dump();
    const auto [entry, inserted] =
        found.steps.emplace(event.at("step").get<std::int64_t>(), values);
    // A step that was done again must come out the same.
    if (entry->second != values)
      found.problem = "step " + event.at("step").dump() + " came out differently the second time";
  }
  return found;
}

std::string difference(const Outcome& got, const Outcome& wanted) {
  Problems problems;
  problems.add(got.problem);
  for (const auto& [name, bytes] : wanted.files)
    if (!got.files.contains(name))
      problems.add(name + " is missing");
    else
      problems.require(got.files.at(name) == bytes, name + " has other bytes");
  for (const auto& [name, bytes] : got.files)
    problems.require(wanted.files.contains(name), name + " was not expected");
  auto steps = wanted.steps;
  if (got.log_has_gap)
    std::erase_if(steps, [&](const auto& step) { return !got.steps.contains(step.first); });
  problems.require(got.steps == steps, "the log's losses differ");
  return problems.text();
}

std::vector<std::string> temporaries(const fs::path& folder) {
  std::vector<std::string> found;
  // A file that a run in progress removes meanwhile is no error.
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    if (at->path().filename().string().find(".tmp") != std::string::npos)
      found.push_back(at->path().lexically_relative(folder).string());
  return found;
}

std::int64_t newest_step(const fs::path& output) {
  const fs::path newest = CheckpointHistory(output / "checkpoints").newest();
  return newest.empty() ? -1 : std::stoll(newest.filename().string().substr(5));
}

std::int64_t steps_logged(const fs::path& output) {
  std::set<std::int64_t> steps;
  std::string problem;
  for (const Json& event : events(output, problem))
    if (event.at("event") == "train") steps.insert(event.at("step").get<std::int64_t>());
  return static_cast<std::int64_t>(steps.size());
}

std::vector<std::string> logged(const fs::path& output, const std::string& event) {
  std::vector<std::string> found;
  std::string problem;
  for (const Json& line : events(output, problem))
    if (line.at("event") == event) found.push_back(line.dump());
  return found;
}

}  // namespace sluice::test
