#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/faults/trace.h"
#include "tests/support/catch.h"

// The order of calls decides what a power failure leaves: a file's bytes are synced before the file
// gets its name, its folder is synced after that, and nothing older is removed before then.

namespace sluice::test::order_test {
namespace {

/// Reads calls in their order, knows what is durable at each moment, and collects what was relied
/// upon too early.
class OrderCheck {
 public:
  explicit OrderCheck(fs::path output) : output_(std::move(output)) {}

  std::string check(const std::vector<Call>& calls) {
    for (const Call& call : calls)
      if (!call.failed() && !call.paths.empty()) see(call);
    require(renamed_ > 2 && removed_ > 1 && told_ > 2, "there was too little to tell");
    for (const auto& [folder, names] : unsynced_names_)
      for (const auto& name : names)
        require(false, name.string() + " never got a durable name");
    return problems_.text();
  }

 private:
  void require(bool holds, const std::string& otherwise) { problems_.require(holds, otherwise); }

  static int step_of(const fs::path& checkpoint) {
    return std::stoi(checkpoint.filename().string().substr(5));
  }
  static bool is_log(const fs::path& path) { return path.filename() == "log.jsonl"; }
  /// The folder of a checkpoint under its final name that this path is, or is in.
  fs::path checkpoint_of(const fs::path& path) const {
    for (fs::path at = path; at.has_relative_path() && at != output_; at = at.parent_path())
      if (at.parent_path() == output_ / "checkpoints" &&
          at.filename().string().find(".tmp") == std::string::npos)
        return at;
    return {};
  }

  void see(const Call& call) {
    const fs::path& path = call.paths.front();
    if (call.writes()) {
      if (is_log(path)) return see_log(call);
      written_.insert(path);
      last_written_[path.parent_path()] = path;
    } else if (call.syncs()) {
      written_.erase(path);
      unsynced_names_.erase(path);
    } else if (call.name == "mkdir") {
      if (path != output_) unsynced_names_[path.parent_path()].insert(path);
    } else if (call.name == "openat") {
      if (call.line.find("O_CREAT") != std::string::npos && !is_log(call.paths.back()))
        unsynced_names_[call.paths.back().parent_path()].insert(call.paths.back());
    } else if (call.name.starts_with("rename")) {
      see_rename(path, call.paths.back());
    } else if (call.name.starts_with("unlink") || call.name == "rmdir") {
      see_removal(path);
    }
  }

  void see_log(const Call& call) {
    if (call.line.find("\\\"checkpoint\\\"") == std::string::npos) return;
    ++told_;
    // Checks only this step: another checkpoint may be in progress.
    for (const auto& name : unsynced_names_[output_ / "checkpoints"])
      require(
          checkpoint_of(name).empty() ||
              call.line.find(fmt::format("\\\"step\\\":{},", step_of(name))) == std::string::npos,
          name.string() + " was told of before its name was durable");
  }

  void see_rename(const fs::path& from, const fs::path& to) {
    for (const auto& path : written_)
      require(!path.string().starts_with(from.string()),
              path.string() + " was renamed before it was synced");
    for (const auto& [folder, names] : unsynced_names_)
      require(!folder.string().starts_with(from.string()),
              folder.string() + " was renamed before it was synced");
    // Removed under another name, which a crash may leave.
    if (checkpoint_of(from) == from) {
      see_removal(from);
      unnamed_.insert(to);
    }
    unsynced_names_[from.parent_path()].erase(from);
    unsynced_names_[to.parent_path()].insert(to);
    if (checkpoint_of(to) != to) return;
    ++renamed_;
    require(last_written_[from].filename().string().starts_with("state.json"),
            "state.json was not written last: " + last_written_[from].string());
  }

  void see_removal(const fs::path& path) {
    for (const auto& folder : unnamed_)
      require(
          path.parent_path() != folder || !unsynced_names_[folder.parent_path()].contains(folder),
          folder.string() + " was emptied before it had lost its name for good");
    for (auto& [folder, names] : unsynced_names_)
      names.erase(path);
    const fs::path checkpoint = checkpoint_of(path);
    if (checkpoint.empty()) return;
    ++removed_;
    const auto names = unsynced_names_.find(checkpoint.parent_path());
    require(names == unsynced_names_.end() || names->second.empty(),
            checkpoint.string() + " was removed before a newer one was durable");
    require(renamed_ > 1, checkpoint.string() + " was removed before there was a newer one");
  }

  fs::path output_;
  std::set<fs::path> written_;                             ///< and not synced since
  std::map<fs::path, fs::path> last_written_;              ///< by folder
  std::map<fs::path, std::set<fs::path>> unsynced_names_;  ///< by folder
  std::set<fs::path> unnamed_;                             ///< checkpoints that are to go
  int renamed_ = 0, removed_ = 0, told_ = 0;
  Problems problems_;
};

const Arguments names{"openat",   "write",     "pwrite64", "fsync",    "fdatasync", "rename",
                      "renameat", "renameat2", "unlink",   "unlinkat", "rmdir",     "mkdir"};

}  // namespace

TEST_CASE("bytes are durable before names, and names before older checkpoints go") {
  if (!have_strace()) return;
  for (const Kind& kind : kinds()) {
    FaultRuns runs(kind);
    Tally tally(std::string("f: order of a save, ") + kind.name);
    const fs::path output = runs.path() / "out";
    const auto calls = traced(runs, "out", names);
    tally.round("as it is", OrderCheck(output).check(calls));

    // The check itself: without any one of the syncs it complains.
    // A folder that is synced twice in a row is so once too often, and where several files of the
    // model appear in one, the last one's sync is that of all.
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!calls[i].syncs()) continue;
      const fs::path& synced = calls[i].paths.front();
      // A folder that is exchanged for the old one is gone by now.
      const bool made = std::ranges::any_of(calls, [&](const Call& call) {
        return call.name == "mkdir" && call.paths.front() == synced;
      });
      if ((made || fs::is_directory(synced)) && !calls[i].reached(output / "checkpoints")) continue;
      bool needed = true;
      for (std::size_t k = 0; k < calls.size(); ++k)
        if (k != i && calls[k].syncs() && calls[k].paths == calls[i].paths) {
          // Writes to the log by another thread in between make no difference.
          const auto between = [](const Call& call) {
            return call.name != "openat" && !call.syncs() &&
                   call.paths.front().filename() != "log.jsonl";
          };
          const auto [first, last] = std::minmax(i, k);
          bool quiet = true;
          for (std::size_t m = first + 1; m < last; ++m)
            quiet = quiet && !between(calls[m]);
          needed = needed && !quiet;
        }
      if (!needed) continue;
      auto fewer = calls;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      const bool found = !OrderCheck(output).check(fewer).empty();
      tally.round("without " + text_of(calls[i]), found ? "" : "it was not missed");
    }
  }
}

}  // namespace sluice::test::order_test
