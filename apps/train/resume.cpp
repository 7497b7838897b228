#include "apps/train/resume.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/train/checkpoint_folder.h"
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

}  // namespace

void Resumption::warn(const std::string& warning) {
  say_warning(warning);
  warnings.push_back(warning);
}

Resumption find_checkpoint(const TrainOptions& o, const fs::path& output, Job& job) {
  Resumption found;
  if (o.resume == "never") return found;
  if (o.resume != "auto") {
    if (!fs::is_directory(o.resume))
      fail(fmt::format("--resume {}: there is no such checkpoint (auto and never are the other "
                       "values)",
                       o.resume),
           ErrorKind::usage);
    const std::string damage = damage_of(o.resume, found.manifest, job);
    if (!damage.empty()) fail(damage);
    found.checkpoint = o.resume;
    return found;
  }
  if (job.rank() == 0) remove_temporaries(output / "checkpoints");
  auto all = list_checkpoints(output / "checkpoints");
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
