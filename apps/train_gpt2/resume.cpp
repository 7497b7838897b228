#include "apps/train_gpt2/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/cli/progress.h"
#include "apps/output/shared_folder.h"
#include "engine/io/file_identity.h"
#include "engine/io/utf8.h"
#include "kernels/base/error.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/keep_alive.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Returns the damage that any rank finds; "" if there is none. Ranks may see different disks, and
/// those that see the same one verify a share of it each.
std::string damage_of(const fs::path& checkpoint, CheckpointManifest& manifest, Job& job) {
  FileIdentity identity;
  keep_alive(job.control(), "checkpoint",
             [&] { identity = identity_of(checkpoint / "state.json"); });
  const auto all = job.control().gather_values(identity, "checkpoint");
  const auto absent = [](const FileIdentity& file) { return file.number == 0; };
  if (!absent(all[0]) && std::ranges::any_of(all, absent)) {
    const std::string first = job.control().share_text(job.place(), 0, "checkpoint");
    refuse_together(job.control(),
                    absent(identity) ? fmt::format("--resume: {} does not see {}, which {} sees; "
                                                   "give a folder that all hosts share",
                                                   job.place(), checkpoint.string(), first)
                                     : "",
                    "checkpoint");
  }
  const auto here = all.begin() + job.rank();
  const auto share = static_cast<std::size_t>(std::count(all.begin(), here, identity));
  const auto shares = static_cast<std::size_t>(std::count(all.begin(), all.end(), identity));
  std::string damage;
  keep_alive(job.control(), "checkpoint", [&] {
    try {
      manifest = read_manifest(checkpoint);
      verify_files(checkpoint, manifest, share, shares);
    } catch (const Error& error) {
      damage = error.what();
    }
  });
  const auto first = first_rank(job.control(), !damage.empty(), "checkpoint is whole");
  if (first) return job.control().share_text(damage, *first, "damage");
  job.require_equal("checkpoint", to_text(manifest));
  return {};
}

bool is_checkpoint(const fs::path& path) {
  // A step- folder without state.json counts, so that it is reported as a damaged checkpoint.
  return fs::is_directory(path) &&
         (fs::exists(path / "state.json") || path.filename().string().starts_with("step-"));
}

/// Returns the error message for a --resume that names neither a run nor a checkpoint.
std::string no_checkpoint(const fs::path& given) {
  const char* const values =
      "give auto, never, a run's folder (runs/a), or one of its checkpoints "
      "(runs/a/checkpoints/step-00000100)";
  if (fs::exists(given / "config.json"))
    return fmt::format(
        "--resume {0} is a model's folder, which holds no state of a training: "
        "--model {0} trains its weights; or {1}",
        given.string(), values);
  if (fs::is_regular_file(given))
    return fmt::format("--resume {} is a file, and a checkpoint is a folder; {}", given.string(),
                       values);
  if (!fs::exists(given))
    return fmt::format("--resume {}: there is no such checkpoint or run; {}", given.string(),
                       values);
  return fmt::format(
      "--resume {} is neither a checkpoint (it has no state.json) nor a run's folder "
      "(it has no checkpoints/); {}",
      given.string(), values);
}

/// The checkpoints that rank 0 has found, in the order in which to try them.
struct Search {
  std::vector<ResumePoint> candidates{};
  std::vector<std::string> warnings{};
};

Search shared(const Search& mine, Job& job) {
  nlohmann::json text{{"candidates", nlohmann::json::array()}, {"warnings", mine.warnings}};
  for (const ResumePoint& one : mine.candidates)
    text["candidates"].push_back({one.checkpoint.string(), one.named, one.skip_batches});
  const auto all = nlohmann::json::parse(job.control().share_text(text.dump(), 0, "checkpoints"));
  Search search{.warnings = all.at("warnings")};
  for (const auto& one : all.at("candidates"))
    search.candidates.push_back({.checkpoint = one.at(0).get<std::string>(),
                                 .named = one.at(1),
                                 .skip_batches = one.at(2)});
  return search;
}

bool is_folder_of(const fs::path& run, const fs::path& folder) {
  std::error_code none;
  return fs::equivalent(run / "checkpoints", folder, none);
}

Search search_for(const TrainConfig& o, const fs::path& output) {
  if (o.checkpoint.resume.from == ResumeOption::From::nothing) {
    if (CheckpointHistory(output / "checkpoints").entries().empty()) return {};
    fail(fmt::format("--output {} holds checkpoints of an earlier run and --resume is never; give "
                     "another --output",
                     output.string()),
         ErrorKind::usage);
  }
  const std::string& path = o.checkpoint.resume.path;
  if (!is_utf8(path))
    fail(fmt::format("--resume {}: the name is not UTF-8, which the run's files could not hold; "
                     "move the run to another folder",
                     path),
         ErrorKind::usage);
  const fs::path run = run_of_resume(path);
  if (o.checkpoint.resume.from == ResumeOption::From::path && run.empty()) {
    if (!is_checkpoint(path)) fail(no_checkpoint(path), ErrorKind::usage);
    return {.candidates = {{.checkpoint = path, .named = true}}};
  }
  const fs::path folder = (run.empty() ? output : run) / "checkpoints";
  const bool own = is_folder_of(output, folder);
  const CheckpointHistory history(folder, own);
  Search search{.candidates = history.candidates(), .warnings = history.misnamed()};
  for (ResumePoint& candidate : search.candidates)
    candidate.named |= !own;
  if (const auto point = history.resume_point(); point && search.candidates.empty())
    fail(fmt::format("{} was to go on from {}, which is not there any more; give --resume PATH",
                     folder.parent_path().string(), point->checkpoint.string()));
  if (!run.empty() && search.candidates.empty())
    fail(fmt::format("--resume {}: the run has saved no checkpoint in {}; leave --resume out to "
                     "begin anew, and give --save-every for checkpoints on the way",
                     path, folder.string()),
         ErrorKind::usage);
  return search;
}

/// Decides what resuming from `found` means for the run's folder.
void decide_folder(const TrainConfig& o, const fs::path& output, bool named, Resumption& found) {
  const CheckpointHistory history(output / "checkpoints", true);
  found.saves.last = history.last_save();
  const std::int64_t before = history.keep() > 0 ? history.keep() : found.manifest.keep;
  found.keep = o.checkpoint.keep.value_or(before > 0 ? before : 2);
  if (found.checkpoint.empty()) return;
  const bool own = is_folder_of(output, folder_of(found.checkpoint));
  if (own) {
    found.saves.lineage = found.manifest.lineage;
    Lineage& lineage = found.saves.lineage;
    if (named) lineage.name(lineage.save());
    // Also names the checkpoint that an earlier start had named before it saved anything.
    if (const auto point = history.resume_point(); point && point->named)
      for (const auto& entry : history.entries())
        if (entry.manifest && entry.path.filename() == point->checkpoint.filename())
          lineage.name(entry.manifest->lineage.save());
  }
  std::set<fs::path> ancestors;
  if (own)
    for (const auto& entry : history.ancestors(found.manifest))
      ancestors.insert(entry.path);
  for (const auto& entry : history.entries()) {
    std::error_code none;
    const bool stays = ancestors.contains(entry.path) ||
                       fs::equivalent(entry.path, found.checkpoint, none) ||
                       (own && !entry.manifest && entry.step < found.manifest.step);
    if (!stays) found.given_up.push_back(entry.path);
  }
  if (named || found.skip_batches > 0)
    found.point = {.checkpoint = found.checkpoint,
                   .named = named,
                   .skip_batches = found.skip_batches,
                   .saves = history.last_save(),
                   .keep = found.keep};
}

}  // namespace

std::unique_ptr<RunFolder> take_folder(const TrainConfig& o, Job& job) {
  std::unique_ptr<RunFolder> folder;
  keep_alive(job.control(), "output", [&] {
    if (job.rank() > 0) return;
    const std::string output = o.checkpoint.output.empty()
                                   ? run_of_resume(o.checkpoint.resume.path).string()
                                   : o.checkpoint.output;
    folder = std::make_unique<RunFolder>(output, "train_gpt2");
  });
  return folder;
}

fs::path path_for_all(const RunFolder* folder, const TrainConfig& o, Job& job) {
  const fs::path output =
      job.control().share_text(folder != nullptr ? folder->path().string() : "", 0, "output");
  if (o.checkpoint.saves()) require_shared_folder(job.control(), "--output", output);
  return output;
}

void Resumption::warn(const std::string& warning) {
  say_warning(warning);
  warnings.push_back(warning);
}

Resumption find_checkpoint(const TrainConfig& o, const fs::path& output, Job& job) {
  Resumption found;
  Search mine;
  keep_alive(job.control(), "checkpoints", [&] {
    if (job.rank() == 0) mine = search_for(o, output);
  });
  const Search search = shared(mine, job);
  for (const std::string& warning : search.warnings)
    found.warn(warning);
  ResumePoint taken;
  for (std::size_t i = 0; i < search.candidates.size() && found.checkpoint.empty(); ++i) {
    taken = search.candidates[i];
    const std::string damage = damage_of(taken.checkpoint, found.manifest, job);
    if (damage.empty()) {
      found.checkpoint = taken.checkpoint;
    } else if (i + 1 == search.candidates.size()) {
      fail(damage);
    } else {  // damage must not end the run while an older one is whole
      found.warn(damage);
      say_always(fmt::format("             falling back to {}\n",
                             search.candidates[i + 1].checkpoint.string()));
    }
  }
  found.skip_batches = o.data.skip_batches > 0 ? o.data.skip_batches : taken.skip_batches;
  keep_alive(job.control(), "checkpoints", [&] {
    if (job.rank() == 0) decide_folder(o, output, taken.named, found);
  });
  return found;
}

void warn_of_rate(Resumption& found, const RateSchedule& schedule) {
  const auto recorded = found.manifest.fields->find("next_rate");
  if (recorded == found.manifest.fields->end() || !recorded->is_number()) return;
  const double before = *recorded, now = schedule.at(found.manifest.step);
  if (now > 2 * before || now < before / 2)
    found.warn(
        fmt::format("the learning rate goes from {:.3g} to {:.3g} at step {}: --lr, --steps or the "
                    "schedule are not those with which the checkpoint was saved",
                    before, now, found.manifest.step));
}

void take_up(Resumption& found, const fs::path& output) {
  const fs::path folder = output / "checkpoints";
  if (!found.checkpoint.empty() && is_folder_of(output, folder_of(found.checkpoint)))
    found.checkpoint = named(found.checkpoint);
  // Records the resume point first: a run killed in between must not resume from a checkpoint that
  // is to be set aside.
  if (found.point) {
    found.point->checkpoint = found.checkpoint;
    record(*found.point, folder);
  } else if (found.checkpoint.empty()) {
    forget_resume_point(folder);
  }
  for (const fs::path& checkpoint : found.given_up) {
    found.warnings.push_back(fmt::format("{} is not what this run goes on from; it is kept as {}",
                                         checkpoint.string(), set_aside(checkpoint).string()));
    say(fmt::format("set aside    {}\n", found.warnings.back()));
  }
  remove_temporaries(folder);
  if (found.checkpoint.empty()) return;
  // Finds what the next save would remove.
  CheckpointManifest next = found.manifest;
  next.step += 1;
  next.lineage = found.saves.lineage;
  next.lineage.add(found.saves.last + 1);
  const auto older = CheckpointHistory(folder).removable(next);
  const auto go = static_cast<std::int64_t>(older.size()) - (found.keep - 1);
  // Normally each save removes one checkpoint.
  if (go > (found.manifest.keep > found.keep ? 0 : 1))
    found.warn(
        fmt::format("--keep {}: the next save removes {} older {}, from {} on; give --keep {} "
                    "to keep {}",
                    found.keep, go, go == 1 ? "checkpoint" : "checkpoints",
                    older.front().path.string(), found.keep + go, go == 1 ? "it" : "them"));
}

}  // namespace sluice
