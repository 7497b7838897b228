#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/faults/runs.h"
#include "tests/faults/walk/run.h"

// Compares the disk with the checkpoints that the rules keep.

namespace sluice::test::walk {

std::string& Sequence::digest_of(int checkpoint) {
  if (digests_.size() <= static_cast<std::size_t>(checkpoint))
    digests_.resize(static_cast<std::size_t>(checkpoint) + 1);
  return digests_[static_cast<std::size_t>(checkpoint)];
}

int Sequence::known(int folder, const std::string& bytes) const {
  for (std::size_t one = 0; one < digests_.size(); ++one)
    if (!bytes.empty() && digests_[one] == bytes && rules.all[one].folder == folder)
      return static_cast<int>(one);
  return -1;
}

fs::path Sequence::named(int checkpoint) const {
  const Saved& saved = rules.all[checkpoint];
  return checkpoints(saved.folder) / name_of(saved.step());
}

fs::path Sequence::in_aside(int checkpoint) const {
  const auto number = static_cast<std::size_t>(checkpoint);
  const fs::path aside = checkpoints(rules.all[checkpoint].folder) / "set-aside";
  if (number < digests_.size() && fs::exists(aside))
    for (const auto& entry : fs::directory_iterator(aside))
      if (!digests_[number].empty() && digest(entry.path()) == digests_[number])
        return entry.path();
  return {};
}

fs::path Sequence::place(int checkpoint) const {
  const Folder& folder = rules.folders[rules.all[checkpoint].folder];
  return holds(folder.chain, checkpoint) ? named(checkpoint) : in_aside(checkpoint);
}

void Sequence::check_all() {
  for (const int folder : {0, 1})
    if (exists(folder)) check_folder(folder);
}

void Sequence::check_new(int checkpoint, const fs::path& path) {
  const Saved& saved = rules.all[checkpoint];
  const auto what = fmt::format("{}: ", path.lexically_relative(dir_.path()).string());
  const auto manifest = read_manifest_of(path);
  if (!manifest || !is_whole(path)) return add(what + "is not whole");
  digest_of(checkpoint) = digest(path);
  if (manifest->step != saved.step() || manifest->skipped != saved.skipped() ||
      manifest->keep != saved.keep || manifest->micro_batch != saved.way.back().micro_batch)
    add(fmt::format("{}step {}, {} left out, --keep {}, --micro-batch {}, not {}, {}, {}, {}", what,
                    manifest->step, manifest->skipped, manifest->keep, manifest->micro_batch,
                    saved.step(), saved.skipped(), saved.keep, saved.way.back().micro_batch));
  // Saves are numbered in their order, and what it descends from is told by these numbers.
  std::vector<std::int64_t> line;
  const auto parents = rules.ancestors(checkpoint);
  for (const auto& where : {checkpoints(saved.folder), checkpoints(saved.folder) / "set-aside"})
    if (fs::exists(where))
      for (const auto& entry : fs::directory_iterator(where)) {
        const auto other = read_manifest_of(entry.path());
        const std::string bytes = digest(entry.path());
        if (!other || other->saves.empty() || bytes == digest_of(checkpoint)) continue;
        const int number = known(saved.folder, bytes);
        if (number < 0 || number > checkpoint) continue;
        const std::int64_t save = other->saves.back();
        if (save >= manifest->saves.back())
          add(fmt::format("{}its save has the number {}, and an older one has {}", what,
                          manifest->saves.back(), save));
        const bool descends = std::find(manifest->saves.begin(), manifest->saves.end(), save) !=
                              manifest->saves.end();
        bool parent = false;
        for (const int one : parents)
          parent = parent || digest_of(one) == bytes;
        if (descends != parent)
          add(fmt::format("{}its lineage {} save {}", what, descends ? "has" : "lacks", save));
      }
  const fs::path reference = references_.of(saved.way);
  for (const char* const file : {"weights.safetensors", "optimizer.safetensors"})
    if (read_file(path / file) != read_file(reference / file))
      add(fmt::format("{}{} is not that of a run without interruption: {}", what, file,
                      text_of(saved.way)));
}

fs::path Sequence::moving(int folder, const std::string& name) const {
  if (!name.starts_with("model/")) return {};
  for (const auto& entry : fs::directory_iterator(output(folder)))
    if (const std::string other = entry.path().filename().string();
        other.starts_with("model.tmp.") && fs::exists(entry.path() / name.substr(6)))
      return entry.path() / name.substr(6);
  return {};
}

void Sequence::check_folder(int folder) {
  Folder& f = rules.folders[folder];
  const fs::path own = checkpoints(folder);
  for (const auto& [name, bytes] : users_[folder]) {
    // A file in model/ moves with the new model; a run that is killed leaves that to the next.
    if (const fs::path on_its_way = moving(folder, name);
        !on_its_way.empty() && read_file(on_its_way) == bytes)
      continue;
    const bool there = fs::is_regular_file(output(folder) / name);
    if (!there || read_file(output(folder) / name) != bytes)
      add("the user's file " + name + (there ? " is changed" : " is gone"));
  }
  if (!crashed_[folder])
    for (const auto& name : temporaries(output(folder)))
      // The model's files are written, and their temporaries removed, by a run that exports.
      if (name.find("paper") == std::string::npos && !name.starts_with("model") &&
          !name.starts_with("checkpoints/resume.json"))
        add(name + " was left behind");
  std::vector<int> chain;
  for (const int one : f.chain) {
    const fs::path path = named(one);
    // If its state.json is damaged, nobody knows where the checkpoint belongs.
    if (rules.all[one].unreadable && !fs::exists(path) && !in_aside(one).empty()) {
      f.aside.push_back(one);
      continue;
    }
    chain.push_back(one);
    if (!fs::exists(path))
      add(path.lexically_relative(dir_.path()).string() + " is gone");
    else if (digest_of(one).empty())
      check_new(one, path);
    else if (digest(path) != digest_of(one))
      add(path.lexically_relative(dir_.path()).string() + " has other bytes");
  }
  f.chain = chain;
  if (fs::exists(own))
    for (const auto& entry : fs::directory_iterator(own)) {
      const std::string name = entry.path().filename().string();
      bool known = name == "set-aside" || name == "resume.json" ||
                   name.starts_with("resume.json.tmp.") || copies_[folder].contains(name) ||
                   (crashed_[folder] && name.find(".tmp.") != std::string::npos);
      for (const int one : f.chain)
        known = known || named(one) == entry.path();
      for (const auto& file : users_[folder])
        known = known || file.first.starts_with("checkpoints/" + name);
      for (std::size_t one = 0; one < rules.all.size(); ++one)
        known = known || (rules.all[one].unreadable && digest(entry.path()) == digests_[one]);
      if (!known) add(entry.path().lexically_relative(dir_.path()).string() + " is there still");
    }
  check_aside(folder);
}

void Sequence::check_aside(int folder) {
  const fs::path aside = checkpoints(folder) / "set-aside";
  std::map<std::string, int> wanted, found;
  for (const int one : rules.folders[folder].aside)
    ++wanted[digest_of(one)];
  for (const auto& [name, bytes] : copies_[folder])
    if (digest(checkpoints(folder) / name) != bytes) ++wanted[bytes];
  if (fs::exists(aside))
    for (const auto& entry : fs::directory_iterator(aside))
      ++found[digest(entry.path())];
  for (const auto& [bytes, times] : wanted)
    if (found[bytes] < times) {
      std::string which;
      for (std::size_t one = 0; one < digests_.size(); ++one)
        if (digests_[one] == bytes) which = name_of(rules.all[one].step());
      add("set-aside/ has lost " + which);
    }
  for (const auto& [bytes, times] : found) {
    bool known = wanted[bytes] >= times;
    for (const auto& file : users_[folder])
      known = known || file.first.starts_with("checkpoints/set-aside/");
    for (std::size_t one = 0; one < rules.all.size(); ++one)
      known = known || (rules.all[one].unreadable && digests_[one] == bytes);
    if (!known) add("set-aside/ has what was not given up");
  }
}

}  // namespace sluice::test::walk
