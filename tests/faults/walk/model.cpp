#include "tests/faults/walk/model.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::test::walk {

std::string text_of(const Way& way) {
  std::string text;
  for (const Leg& leg : way)
    text +=
        fmt::format("{}{} steps, {} left out, micro-batch {}, {} ranks", text.empty() ? "" : "; ",
                    leg.until, leg.skipped, leg.micro_batch, leg.ranks);
  return text;
}

std::string name_of(int step) {
  return fmt::format("step-{:08}", step);
}

bool holds(const std::vector<int>& all, int one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

std::vector<int> Rules::ancestors(int checkpoint) const {
  std::vector<int> found;
  if (checkpoint < 0) return found;
  const int folder = all[checkpoint].folder;
  for (int at = all[checkpoint].parent; at >= 0 && all[at].folder == folder; at = all[at].parent)
    found.push_back(at);
  return found;
}

std::vector<int> Rules::named_by_path(int checkpoint) const {
  std::vector<int> found = ancestors(checkpoint);
  std::erase_if(found, [&](int one) { return !all[one].named; });
  return found;
}

std::vector<int> Rules::line_of(int folder) const {
  std::vector<int> line = folders[folder].chain;
  if (folders[folder].unnamed) line.push_back(*folders[folder].unnamed);
  std::sort(line.begin(), line.end());
  return line;
}

std::vector<int> Rules::since_decision(int folder) const {
  std::vector<int> line = line_of(folder);
  const auto& decision = folders[folder].decision;
  std::erase_if(line, [&](int one) { return decision && one < decision->before; });
  return line;
}

std::optional<Decision::Place> Rules::place_of(int checkpoint) const {
  const Folder& f = folders[all[checkpoint].folder];
  if (holds(f.chain, checkpoint)) return Decision::Place::chain;
  if (holds(f.aside, checkpoint)) return Decision::Place::aside;
  if (f.unnamed == checkpoint) return Decision::Place::unnamed;
  return {};
}

Plan Rules::newest_of(int folder) const {
  const Folder& f = folders[folder];
  Plan plan;
  std::vector<int> passed;
  const auto take = [&](int checkpoint, int skip) {
    if (all[checkpoint].damaged)
      passed.push_back(checkpoint);
    else
      plan.starts.push_back({.source = checkpoint, .passed = passed, .skip = skip});
    return !all[checkpoint].damaged;
  };
  const std::vector<int> later = since_decision(folder);
  for (auto at = later.rbegin(); at != later.rend(); ++at)
    if (take(*at, 0)) return plan;
  plan.may_refuse = !passed.empty();
  if (!f.decision) {
    if (passed.empty()) plan.starts.push_back({});
    return plan;
  }
  const bool there = place_of(f.decision->source) == f.decision->place;
  plan.may_refuse = !there || all[f.decision->source].damaged;
  if (!there || take(f.decision->source, f.decision->skip)) return plan;
  // The pages do not say whether "the one before" holds of this one too, and with what left out.
  for (const int before : ancestors(f.decision->source))
    if (holds(f.chain, before) && take(before, f.decision->skip)) {
      take(before, 0);
      break;
    }
  return plan;
}

Plan Rules::plan(const Command& command) const {
  Plan plan;
  if (command.resume == Resume::checkpoint) {
    plan.decides = true;
    if (all[command.source].damaged)
      plan.may_refuse = true;
    else
      plan.starts.push_back({.source = command.source, .passed = {}, .skip = command.skip});
    return plan;
  }
  const bool other = command.resume == Resume::run && command.run != command.folder;
  plan = newest_of(other ? command.run : command.folder);
  if (command.skip > 0)
    for (Start& start : plan.starts)
      start.skip = command.skip;
  plan.decides = other || command.skip > 0;
  const bool nothing = !plan.starts.empty() && plan.starts.front().source < 0;
  if (nothing && (command.skip > 0 || command.resume == Resume::run)) {
    plan.starts.clear();
    plan.may_refuse = true;
  }
  return plan;
}

void Rules::begin(const Command& command, const Plan& plan, const Start& start) {
  Folder& f = folders[command.folder];
  const int keep = keep_of(command, start);
  const bool own = start.source >= 0 && all[start.source].folder == command.folder;
  std::vector<int> stay;
  if (own) stay = ancestors(start.source);
  if (own) stay.push_back(start.source);
  std::vector<int> chain;
  for (const int one : line_of(command.folder))
    (holds(stay, one) ? chain : f.aside).push_back(one);
  f.chain = chain;
  f.unnamed.reset();
  if (own && command.resume == Resume::checkpoint) all[start.source].named = true;
  // A run that goes on by a decision notes it again, with its own --keep.
  if (f.decision && f.decision->source == start.source && since_decision(command.folder).empty())
    f.decision->keep = keep;
  if (plan.decides)
    f.decision = Decision{.source = start.source,
                          .skip = start.skip,
                          .keep = keep,
                          .before = static_cast<int>(all.size()),
                          .place = *place_of(start.source)};
}

Way Rules::way(const Command& command, const Start& start, int step) const {
  Way way = start.source < 0 ? Way{} : all[start.source].way;
  Leg leg{.until = step,
          .skipped = start.skip + (way.empty() ? 0 : way.back().skipped),
          .micro_batch = command.micro_batch,
          .ranks = command.ranks};
  if (leg.micro_batch == 0 && !way.empty()) leg.micro_batch = way.back().micro_batch;
  const bool alike = !way.empty() && way.back().skipped == leg.skipped &&
                     way.back().micro_batch == leg.micro_batch && way.back().ranks == leg.ranks;
  if (alike) way.pop_back();
  way.push_back(leg);
  return way;
}

std::vector<int> Rules::removed(const std::vector<int>& chain, const std::vector<int>& ancestors,
                                const std::vector<int>& named, int keep) const {
  std::vector<int> gone;
  int kept = 1;  // the one that is saved
  for (const int one : ancestors)
    if (holds(chain, one) && !holds(named, one) && ++kept > keep) gone.push_back(one);
  return gone;
}

int Rules::save(const Command& command, const Start& start, int step) {
  Folder& f = folders[command.folder];
  Saved saved{.folder = command.folder,
              .way = way(command, start, step),
              .keep = keep_of(command, start),
              .parent = start.source};
  // The save before, of the same run.
  if (!f.chain.empty() && all[f.chain.back()].step() > step_of(start))
    saved.parent = f.chain.back();
  all.push_back(saved);
  const int number = static_cast<int>(all.size()) - 1;
  f.chain.push_back(number);
  for (const int gone : removed(f.chain, ancestors(number), named_by_path(number), saved.keep))
    std::erase(f.chain, gone);
  return number;
}

int Rules::removed_by(const Start& start, int folder, int keep) const {
  const Folder& f = folders[folder];
  if (start.source < 0 || all[start.source].folder != folder) return 0;
  std::vector<int> line = ancestors(start.source), named = named_by_path(start.source);
  line.insert(line.begin(), start.source);
  if (all[start.source].named) named.push_back(start.source);
  return static_cast<int>(removed(f.chain, line, named, keep).size());
}

std::vector<int> Rules::due(const Command& command, const Start& start, int last) const {
  std::vector<int> steps;
  const int from = step_of(start);
  for (int step = from + 1; step <= last; ++step)
    if (!(command.no_save && step == command.steps) &&
        ((step == last && !command.no_save) ||
         (command.save_every > 0 && step % command.save_every == 0)))
      steps.push_back(step);
  return steps;
}

int Rules::step_of(const Start& start) const {
  return start.source < 0 ? 0 : all[start.source].step();
}

int Rules::keep_of(const Command& command, const Start& start) const {
  if (command.keep > 0) return command.keep;
  return start.keep > 0 ? start.keep : keep_before(command.folder, start);
}

int Rules::keep_before(int folder, const Start& start) const {
  const auto& decision = folders[folder].decision;
  auto later = since_decision(folder);
  std::erase_if(later, [&](int one) { return all[one].unreadable; });
  if (decision && later.empty()) return decision->keep;
  int last = start.source;
  for (const auto& part : {folders[folder].chain, folders[folder].aside})
    for (const int one : part)
      if (!all[one].unreadable && (last < 0 || all[last].folder != folder || one > last))
        last = one;
  return last < 0 ? 2 : all[last].keep;
}

std::vector<int> Rules::copy_folder() {
  std::vector<int> copies(all.size(), -1);
  const auto originals = static_cast<int>(all.size());
  for (int one = 0; one < originals; ++one) {
    if (all[one].folder != 0) continue;
    Saved copy = all[one];
    copy.folder = 1;
    if (copy.parent >= 0 && copies[copy.parent] >= 0) copy.parent = copies[copy.parent];
    copies[one] = static_cast<int>(all.size());
    all.push_back(copy);
  }
  const auto move = [&](int& one) {
    if (copies[one] >= 0) one = copies[one];
  };
  folders[1] = folders[0];
  for (int& one : folders[1].chain)
    move(one);
  for (int& one : folders[1].aside)
    move(one);
  if (folders[1].unnamed) move(*folders[1].unnamed);
  if (folders[1].decision) {
    Decision& d = *folders[1].decision;
    move(d.source);
    while (d.before < originals && copies[d.before] < 0)
      ++d.before;
    d.before = d.before < originals ? copies[d.before] : static_cast<int>(all.size());
  }
  return copies;
}

}  // namespace sluice::test::walk
