#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/faults/runs.h"
#include "tests/faults/walk/run.h"

// Compares the results of a command with the rules' prediction.

namespace sluice::test::walk {

namespace {

std::string list(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers)
    text += (text.empty() ? "" : ",") + std::to_string(number);
  return "[" + text + "]";
}

/// Returns the checkpoints of the chain that were set aside.
std::vector<int> set_aside(const Rules& before, const Rules& after, int folder) {
  std::vector<int> moved;
  for (const int one : after.folders[folder].aside)
    if (!holds(before.folders[folder].aside, one)) moved.push_back(one);
  return moved;
}

}  // namespace

Sequence::Before Sequence::before(int folder) const {
  Before was{.files = snapshot(output(folder)), .resume = read_resume(checkpoints(folder)).dump()};
  const fs::path log = output(folder) / "log.jsonl";
  // Half a line is cut off by the next run.
  if (fs::exists(log)) was.log_bytes = read_file(log).rfind('\n') + 1;
  return was;
}

void Sequence::compare(const Command& command, const Before& before, const Done& done) {
  const Plan plan = rules.plan(command);
  const Json* const began = done.last("start");
  const ProgramResult& result = done.result;
  const bool killed = result.exit_code != 0 && result.exit_code != 1 && result.exit_code != 2;
  if (began == nullptr && !killed) {
    if (plan.may_refuse) return unchanged(command, before, result, false);
    return add(fmt::format("it was refused with {}: {}", result.exit_code, result.err));
  }
  if (plan.starts.empty() && began != nullptr)
    return add(fmt::format("it was to be refused, but goes on from step {}",
                           began->at("step").get<int>()));
  if (plan.starts.empty()) {
    const std::string changed = first_difference(before.files, snapshot(output(command.folder)));
    return add(changed.empty() ? "" : "a start that cannot be has changed the folder: " + changed);
  }
  Start start = plan.starts.front();
  if (began != nullptr) {
    std::string expected;
    bool found = false;
    for (const Start& one : plan.starts) {
      const Saved source = one.source < 0 ? Saved{} : rules.all[one.source];
      const int skipped = source.skipped() + one.skip;
      expected += fmt::format("{}step {}, {} left out", expected.empty() ? "" : " or ",
                              source.step(), skipped);
      if (began->at("step") != source.step() || began->at("skipped_batches") != skipped) continue;
      if (!found) start = one;
      found = true;
    }
    if (!found)
      return add(fmt::format("it begins at step {}, {} left out, not at {}",
                             began->at("step").get<int>(), began->at("skipped_batches").get<int>(),
                             expected));
    start.keep = began->at("options").at("keep");
    // If a decision replaces another one, the documentation does not say whose --keep applies.
    Rules undecided = rules;
    if (plan.decides) undecided.folders[command.folder].decision.reset();
    const int keep = command.keep > 0 ? command.keep : rules.keep_before(command.folder, start);
    const int other = command.keep > 0 ? keep : undecided.keep_before(command.folder, start);
    if (start.keep != keep && start.keep != other)
      add(fmt::format("it keeps {}, not {}", start.keep, keep));
  }
  if (result.exit_code == 0) return ended_well(command, plan, start, done);
  if (killed) {
    crashed_[command.folder] = true;
    return cut_short(command, plan, start, before, done);
  }
  add(fmt::format("it fails with {}: {}", result.exit_code, result.err));
}

void Sequence::ended_well(const Command& command, const Plan& plan, const Start& start,
                          const Done& done) {
  const auto trained = done.steps("train");
  const int last = trained.empty() ? rules.step_of(start) : trained.back();
  if (!done.asked && last != std::max(command.steps, rules.step_of(start)))
    add(fmt::format("it ends after step {}", last));
  if (!done.result.err.empty()) add("a run that ends well says: " + done.result.err);
  if (done.last("end") == nullptr) add("its log has no end");
  const Rules before = rules;
  rules.begin(command, plan, start);
  sentences(command, start, before, done);
  const auto due = rules.due(command, start, last);
  if (done.steps("checkpoint") != due)
    add(fmt::format("it has saved after {}, not {}", list(done.steps("checkpoint")), list(due)));
  for (const int step : due)
    rules.save(command, start, step);
  crashed_[command.folder] = false;
}

void Sequence::sentences(const Command& command, const Start& start, const Rules& before,
                         const Done& done) {
  const std::string& out = done.result.out;
  const auto says = [&](const std::string& words) { return out.find(words) != std::string::npos; };
  for (const int one : set_aside(before, rules, command.folder))
    if (!says("set-aside/" + name_of(rules.all[one].step())))
      add(fmt::format("it does not say that step {} is set aside", rules.all[one].step()));
  if (says("falling back") == start.passed.empty())
    add(start.passed.empty() ? "it falls back without need" : "it does not say that it falls back");
  const bool removes = says("the next save removes");
  const int gone = rules.removed_by(start, command.folder, rules.keep_of(command, start));
  const int was = before.keep_before(command.folder, start);
  const bool fewer = gone > 1 || (gone > 0 && rules.keep_of(command, start) < was);
  if (removes && gone == 0) add("it says that checkpoints go, and none does");
  if (!removes && fewer && !rules.due(command, start, command.steps).empty())
    add("it does not say that fewer checkpoints are kept");
}

bool Sequence::is_noted(int folder) const {
  const auto& decision = rules.folders[folder].decision;
  const Json resume = read_resume(checkpoints(folder));
  if (!decision || !resume.is_object()) return false;
  const fs::path path = checkpoints(folder) / resume.value("checkpoint", "");
  // A temporary has its name by then.
  const fs::path source = decision->place == Decision::Place::aside ? in_aside(decision->source)
                                                                    : named(decision->source);
  // One that was noted before the last save does not count any more.
  std::int64_t last = 0;
  for (const auto& where : {checkpoints(folder), checkpoints(folder) / "set-aside"})
    if (fs::exists(where))
      for (const auto& entry : fs::directory_iterator(where))
        if (const auto manifest = read_manifest_of(entry.path());
            manifest && entry.path().filename().string().find(".tmp.") == std::string::npos)
          last = std::max(last, manifest->saves.back());
  return resume.value("saves", std::int64_t{-1}) >= last &&
         resume.value("skip_batches", -1) == decision->skip && !source.empty() &&
         fs::weakly_canonical(path) == fs::weakly_canonical(source);
}

/// The run was killed somewhere: finds where from what is on the disk, and takes it from there.
void Sequence::cut_short(const Command& command, const Plan& plan, const Start& start,
                         const Before& before, const Done& done) {
  const int folder = command.folder;
  const Rules old = rules;
  rules.begin(command, plan, start);
  std::vector<Rules> states{rules};
  for (const int step : rules.due(command, start, command.steps)) {
    rules.save(command, start, step);
    states.push_back(rules);
  }
  const auto seen_before = [&](const fs::path& path) {
    const std::string bytes = digest(path);
    for (const auto& copy : copies_[folder])
      if (copy.second == bytes) return true;
    return bytes.empty() || known(folder, bytes) >= 0;
  };
  std::size_t saved = states.size() - 1;
  for (; saved > 0; --saved) {
    rules = states[saved];
    const auto& chain = rules.folders[folder].chain;
    if (!seen_before(named(chain.back()))) break;
  }
  const std::size_t logged = done.steps("checkpoint").size();
  // A save beside training is told of at the next one.
  if (logged > saved || saved > logged + 2)
    add(fmt::format("it has told of {} saves, and {} are there", logged, saved));
  rules = states[saved];
  Folder& f = rules.folders[folder];
  if (saved > 0) {
    // Those that the last save removes may still be there.
    for (const int one : states[saved - 1].folders[folder].chain)
      if (!holds(f.chain, one) && fs::exists(named(one))) f.chain.push_back(one);
    std::sort(f.chain.begin(), f.chain.end());
  } else {
    bool all_moved = true;
    const bool noted = !plan.decides || is_noted(folder);
    const auto moved = set_aside(old, rules, folder);
    for (const int one : moved) {
      if (!in_aside(one).empty()) continue;
      all_moved = false;
      std::erase(f.aside, one);
      if (old.folders[folder].unnamed != one || digest(named(one)) == digest_of(one))
        f.chain.push_back(one);
    }
    std::sort(f.chain.begin(), f.chain.end());
    for (const int one : moved)
      if (!noted && holds(f.aside, one) && !rules.all[one].damaged)
        add("it has set aside before it has noted what it goes on from");
    if (!done.steps("train").empty() && !noted) add("it has not noted what it goes on from");
    if (!done.steps("train").empty() && !all_moved) add("it trains before it has set aside");
    if (!noted) {
      f.decision = old.folders[folder].decision;
      if (read_resume(checkpoints(folder)).dump() != before.resume)
        add("resume.json is something else");
    }
    if (!noted && plan.decides && start.source >= 0)
      rules.all[start.source].named = old.all[start.source].named;
    if (const Json resume = read_resume(checkpoints(folder)); f.decision && resume.is_object())
      f.decision->keep = resume.value("keep", 0);
    if (const auto one = old.folders[folder].unnamed)
      if (digest(named(*one)) != digest_of(*one) && in_aside(*one).empty())
        std::erase(f.chain, *one);
  }
  find_temporary(folder, saved + 1 < states.size() ? &states[saved + 1] : nullptr);
}

/// A whole checkpoint whose writer was killed before its last rename.
void Sequence::find_temporary(int folder, const Rules* after_next) {
  static const std::regex pattern("step-([0-9]{8})\\.tmp\\.[0-9]+");
  if (!fs::exists(checkpoints(folder))) return;
  Folder& f = rules.folders[folder];
  f.unnamed.reset();
  for (const auto& entry : fs::directory_iterator(checkpoints(folder))) {
    if (!std::regex_match(entry.path().filename().string(), pattern) || !is_whole(entry.path()))
      continue;
    if (const int number = known(folder, digest(entry.path())); number >= 0) {
      if (!holds(f.chain, number) && !holds(f.aside, number) && !f.unnamed) f.unnamed = number;
    } else if (after_next != nullptr) {
      rules.all = after_next->all;
      f.unnamed = static_cast<int>(rules.all.size()) - 1;
      check_new(*f.unnamed, entry.path());
    } else {
      add(entry.path().filename().string() + " was not to be written");
    }
  }
}

}  // namespace sluice::test::walk
