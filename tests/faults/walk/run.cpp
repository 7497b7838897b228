#include "tests/faults/walk/run.h"

#include <fmt/format.h>
#include <sys/syscall.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/faults/runs.h"
#include "tests/faults/trace.h"

namespace sluice::test::walk {

namespace {

/// Returns true if a thread of the process is blocked until somebody reads its output.
bool waits_to_print(pid_t process) {
  std::error_code gone;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", process), gone)) {
    std::ifstream file(task.path() / "syscall");
    std::string call, descriptor;
    if (file >> call >> descriptor && call == std::to_string(SYS_write) && descriptor == "0x1")
      return true;
  }
  return false;
}

/// The flags of both; of one that is in both, the second's.
Arguments joined(Arguments all, const Arguments& more) {
  for (const auto& word : more) {
    const std::string name = word.substr(0, word.find('='));
    std::erase_if(all, [&](const auto& old) { return old.substr(0, old.find('=')) == name; });
    all.push_back(word);
  }
  return all;
}

bool has_ended(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(')');
  return end == std::string::npos || text.compare(end, 3, ") Z") == 0;
}

}  // namespace

const Json* Sequence::Done::last(const std::string& event) const {
  for (auto at = events.rbegin(); at != events.rend(); ++at)
    if (at->at("event") == event) return &*at;
  return nullptr;
}

std::vector<int> Sequence::Done::steps(const std::string& event) const {
  std::vector<int> found;
  for (const Json& one : events)
    if (one.at("event") == event) found.push_back(one.at("step"));
  return found;
}

Sequence::Sequence(References& references, Arguments flags)
    : references_(references), flags_(std::move(flags)), dir_(FaultRuns::in_memory()) {
  fs::create_directory(dir_.path() / "elsewhere");
}

std::string Sequence::told() const {
  std::string text = "F='";
  for (const auto& flag : flags_)
    text += (flag == flags_.front() ? "" : " ") + flag;
  text += "'";
  for (const auto& line : told_)
    text += "\n    " + line;
  for (std::size_t at = 0; (at = text.find(dir_.path().string(), at)) != std::string::npos;)
    text.replace(at, dir_.path().string().size(), "$R");
  return text;
}

void Sequence::tell(const Manner& manner, const Arguments& arguments, const std::string& how) {
  std::string line = manner.from.empty() ? "" : "cd " + manner.from + "; ";
  line += "train_gpt2 $F";
  for (const auto& word : arguments)
    line += " " + word;
  told_.push_back(line + (how.empty() ? "" : "   # " + how));
}

Arguments Sequence::arguments(const Command& c, const Manner& manner) const {
  const auto path = [&](const fs::path& p) {
    if (manner.absolute) return p.string();
    return p.lexically_relative(dir_.path() / manner.from).string();
  };
  Arguments all{"--output=" + path(output(c.folder)), fmt::format("--steps={}", c.steps)};
  if (c.resume == Resume::checkpoint) all.push_back("--resume=" + path(place(c.source)));
  if (c.resume == Resume::run) all.push_back("--resume=" + path(output(c.run)));
  if (c.skip > 0) all.push_back(fmt::format("--skip-batches={}", c.skip));
  if (c.keep > 0) all.push_back(fmt::format("--keep={}", c.keep));
  if (c.save_every > 0) all.push_back(fmt::format("--save-every={}", c.save_every));
  if (c.no_save) all.push_back("--save=never");
  if (c.micro_batch > 0) all.push_back(fmt::format("--micro-batch={}", c.micro_batch));
  all.insert(all.end(), manner.more.begin(), manner.more.end());
  return all;
}

ProgramResult Sequence::perform(const Command& command, const Manner& manner,
                                const Ending& ending) {
  const Arguments given = arguments(command, manner);
  Arguments words = joined(flags_, given);
  const fs::path from = dir_.path() / manner.from;
  const std::string program = (fs::path(SLUICE_BIN_DIR) / "train_gpt2").string();
  if (command.ranks > 1) {
    tell(manner, given, fmt::format("by scripts/launch -n {}", command.ranks));
    words.insert(words.begin(), {"-n", std::to_string(command.ranks), program});
    const Arguments flags = mpirun_flags();
    words.insert(words.begin(), flags.begin(), flags.end());
    ProgramResult result = run_program(SLUICE_MPIRUN, words, {}, from);
    result.err.clear();  // mpirun's words are not the program's
    return result;
  }
  if (ending.how == Ending::How::by_itself) {
    tell(manner, given, "");
    return run_program(program, words, {}, from);
  }
  if (ending.how == Ending::How::at_call) {
    tell(manner, given, fmt::format("killed at {} {}", ending.call, ending.number));
    Arguments traced = injecting(ending.call, fmt::format("signal=KILL:when={}", ending.number));
    traced.push_back(program);
    traced.insert(traced.end(), words.begin(), words.end());
    return run_program("/usr/bin/env", traced, {}, from);
  }
  words.insert(
      words.begin(),
      {"-c", fmt::format("head -c {} /dev/zero; exec \"$@\"", std::max(4096 - ending.room, 1)),
       "sh", program});
  RunningProgram running("/bin/sh", words, {}, from);
  const bool in_time =
      eventually([&] { return waits_to_print(running.id()) || has_ended(running.id()); });
  if (!in_time) add("it neither prints nor ends");
  const bool held = !has_ended(running.id());
  const std::string place =
      fmt::format("{} {} bytes of output", held ? "held after" : "not held in", ending.room);
  switch (ending.then) {
    case Ending::Then::stop:
      tell(manner, given, fmt::format("{}, then signal {}", place, ending.signal));
      running.send(ending.signal);
      break;
    case Ending::Then::kill:
      tell(manner, given, place + ", then killed");
      running.send(SIGKILL);
      break;
    case Ending::Then::second:
      tell(manner, given, place + ", then meanwhile:");
      if (held && fs::exists(output(command.folder) / "log.jsonl")) second(command, running.id());
      break;
    default:
      tell(manner, given, place);
  }
  return running.finish();
}

void Sequence::second(const Command& command, pid_t holder) {
  Command other = command;
  other.steps += 3;
  for (const bool back : {false, true}) {
    other.resume = Resume::newest;
    const auto& chain = rules.folders[command.folder].chain;
    if (back && chain.empty()) continue;
    if (back) {
      other.resume = Resume::checkpoint;
      other.source = chain.front();
      if (place(other.source).empty()) continue;
    }
    const Digests files = snapshot(output(command.folder));
    const Arguments given = arguments(other, {});
    tell({}, given, "beside the one before");
    const Arguments words = joined(flags_, given);
    const ProgramResult result = run_program("train_gpt2", words, {}, dir_.path());
    const std::string who = fmt::format("is in use: process {} on ", holder);
    if (result.exit_code != 2 || result.err.find(who) == std::string::npos ||
        result.err.find("wait for its end, or give another --output") == std::string::npos)
      add(fmt::format("a second run ends with {}: {}", result.exit_code, result.err));
    const std::string changed = first_difference(files, snapshot(output(command.folder)));
    if (!changed.empty()) add("a second run has changed the folder: " + changed);
  }
}

void Sequence::run(const Command& command, const Manner& manner, const Ending& ending) {
  const Before was = before(command.folder);
  Done done;
  done.result = perform(command, manner, ending);
  done.events = log_after(output(command.folder) / "log.jsonl", was.log_bytes);
  done.asked = ending.how == Ending::How::held && ending.then == Ending::Then::stop;
  if (done.result.timed_out) add("it hangs");
  if (!wrong()) compare(command, was, done);
  if (!wrong()) check_all();
}

void Sequence::refused(const Command& command, const Arguments& wrong_flags) {
  const Before was = before(command.folder);
  const ProgramResult result = perform(command, {.from = {}, .more = wrong_flags}, {});
  unchanged(command, was, result, true);
  check_all();
}

void Sequence::unchanged(const Command& command, const Before& before, const ProgramResult& result,
                         bool two) {
  if (result.exit_code != 2 && (two || result.exit_code != 1))
    add(fmt::format("it was to be refused, and ends with {}: {}", result.exit_code, result.err));
  if (command.ranks > 1) return;  // mpirun has words of its own
  if (result.err.find("train_gpt2: error: ") != 0 || count_lines(result.err) != 1)
    add("not one line of error: " + result.err);
  const std::string changed = first_difference(before.files, snapshot(output(command.folder)));
  if (!changed.empty()) add("a refused start has changed the folder: " + changed);
}

void Sequence::copy_under_false_name(int checkpoint, int step) {
  const int folder = rules.all[checkpoint].folder;
  const fs::path to = checkpoints(folder) / name_of(step);
  if (fs::exists(to)) return;
  told_.push_back(fmt::format("cp -r {} {}", place(checkpoint).string(), to.string()));
  fs::copy(place(checkpoint), to, fs::copy_options::recursive);
  copies_[folder][name_of(step)] = digest(to);
}

void Sequence::damage(int checkpoint, Damage how) {
  const fs::path path = place(checkpoint);
  const char* const files[] = {"weights.safetensors", "optimizer.safetensors",
                               "weights.safetensors", "state.json"};
  const fs::path file = path / files[static_cast<int>(how)];
  told_.push_back(fmt::format("# {} is {}", file.string(),
                              how < Damage::cut ? "changed in its middle" : "cut to its half"));
  if (how < Damage::cut) {
    std::string bytes = read_file(file);
    bytes[bytes.size() / 2] ^= 1;
    write_file(file, bytes);
  } else {
    fs::resize_file(file, fs::file_size(file) / 2);
  }
  rules.all[checkpoint].damaged = true;
  rules.all[checkpoint].unreadable = rules.all[checkpoint].unreadable || how == Damage::state;
  digest_of(checkpoint) = digest(path);
}

void Sequence::remove_aside(int folder) {
  const fs::path aside = checkpoints(folder) / "set-aside";
  told_.push_back("rm -r " + aside.string());
  fs::remove_all(aside);
  rules.folders[folder].aside.clear();
  std::erase_if(users_[folder],
                [](const auto& file) { return file.first.starts_with("checkpoints/set-aside/"); });
  std::erase_if(copies_[folder],
                [&](const auto& copy) { return !fs::exists(checkpoints(folder) / copy.first); });
}

void Sequence::add_user_file(int folder, const std::string& name) {
  const fs::path file = output(folder) / name;
  if (fs::exists(file)) return;
  std::error_code not_there;
  fs::create_directories(file.parent_path(), not_there);
  if (not_there) return;
  told_.push_back(
      fmt::format("mkdir -p {}; echo mine > {}", file.parent_path().string(), file.string()));
  write_file(file, "mine\n");
  users_[folder][name] = "mine\n";
}

void Sequence::copy_run() {
  told_.push_back("cp -r a b");
  fs::copy(output(0), output(1), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const std::vector<int> copies = rules.copy_folder();
  digests_.resize(rules.all.size());
  for (std::size_t one = 0; one < copies.size(); ++one)
    if (copies[one] >= 0) digests_[static_cast<std::size_t>(copies[one])] = digests_[one];
  users_[1] = users_[0];
  copies_[1] = copies_[0];
  crashed_[1] = crashed_[0];
}

}  // namespace sluice::test::walk
