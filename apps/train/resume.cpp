#include "apps/train/resume.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/train/checkpoint_folder.h"
#include "apps/train/output_folder.h"
#include "apps/train/progress.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// What one of the ranks, which may see different disks, finds wrong with it; "" if it is whole.
std::string damage_of(const fs::path& checkpoint, CheckpointManifest& manifest, Job& job) {
  std::string damage;
  try {
    manifest = read_manifest(checkpoint);
    verify_files(checkpoint, manifest);
  } catch (const Error& error) {
    damage = error.what();
  }
  const auto all = job.control().gather_values(damage.empty() ? 0 : 1, "checkpoint is whole");
  const auto first = static_cast<int>(std::ranges::find(all, 1) - all.begin());
  if (first < job.size()) return job.control().share_text(damage, first, "damage");
  job.require_equal("checkpoint", to_text(manifest));
  return {};
}

bool is_checkpoint(const fs::path& path) {
  // One that has lost its state.json is told as damaged.
  return fs::is_directory(path) &&
         (fs::exists(path / "state.json") || path.filename().string().starts_with("step-"));
}

/// What is wrong with a value of --resume that names neither a run nor a checkpoint.
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

}  // namespace

fs::path resumed_run(const TrainOptions& o) {
  if (o.resume == "auto" || o.resume == "never") return {};
  fs::path given = fs::path(o.resume).lexically_normal();
  if (!given.has_filename()) given = given.parent_path();  // runs/a/
  if (fs::exists(given / "state.json")) return {};
  if (fs::is_directory(given / "checkpoints")) return given;
  if (given.filename() == "checkpoints" && fs::is_directory(given))
    return given.has_parent_path() ? given.parent_path() : fs::path(".");
  return {};
}

fs::path output_of(const TrainOptions& o) {
  const fs::path run = resumed_run(o);
  return o.output.empty() && !run.empty() ? run : output_folder(o.output);
}

void Resumption::warn(const std::string& warning) {
  say_warning(warning);
  warnings.push_back(warning);
}

Resumption find_checkpoint(const TrainOptions& o, const fs::path& output, Job& job) {
  Resumption found;
  if (o.resume == "never") return found;
  const fs::path run = resumed_run(o);
  if (o.resume != "auto" && run.empty()) {
    if (!is_checkpoint(o.resume)) fail(no_checkpoint(o.resume), ErrorKind::usage);
    const std::string damage = damage_of(o.resume, found.manifest, job);
    if (!damage.empty()) fail(damage);
    found.checkpoint = o.resume;
    return found;
  }
  const fs::path folder = (run.empty() ? output : run) / "checkpoints";
  if (job.rank() == 0 && folder == output / "checkpoints") remove_temporaries(folder);
  auto all = list_checkpoints(folder);
  if (!run.empty() && all.empty())
    fail(fmt::format("--resume {}: the run has saved no checkpoint in {}; leave --resume out to "
                     "begin anew, and give --save-every for checkpoints on the way",
                     o.resume, folder.string()),
         ErrorKind::usage);
  for (; !all.empty(); all.pop_back()) {
    const std::string damage = damage_of(all.back(), found.manifest, job);
    if (damage.empty()) {
      found.checkpoint = all.back();
      return found;
    }
    // A damaged checkpoint must not cost the run while an older one is whole.
    if (all.size() == 1) fail(damage);
    found.warn(damage);
    say_always(fmt::format("             falling back to {}\n", all[all.size() - 2].string()));
  }
  return found;
}

}  // namespace sluice
