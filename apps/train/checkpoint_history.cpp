#include "apps/train/checkpoint_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/train/checkpoint_folder.h"
#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* point_file = "resume.json";

std::optional<CheckpointManifest> manifest_of(const fs::path& checkpoint) {
  try {
    return read_manifest(checkpoint);
  } catch (const Error&) {
    return {};
  }
}

std::optional<ResumePoint> read_point(const fs::path& folder) {
  const fs::path file = folder / point_file;
  if (!fs::exists(file)) return {};
  try {
    const Json json = read_json_file(file, 1 << 16);
    constexpr std::int64_t most = std::int64_t{1} << 62;
    return ResumePoint{.checkpoint = folder / json.at("checkpoint").get<std::string>(),
                       .skip_batches = whole_number(json.at("skip_batches"), 0, most, file),
                       .saves = whole_number(json.at("saves"), 0, most, file)};
  } catch (const std::exception&) {
    fail(
        fmt::format("{} is damaged: it does not say which checkpoint the run was to go on from; "
                    "give --resume PATH",
                    file.string()));
  }
}

/// Of what was set aside, too.
std::int64_t highest_save(const fs::path& folder) {
  std::int64_t highest = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (const auto manifest = manifest_of(entry.path()))
      highest = std::max(highest, manifest->lineage.save());
  return highest;
}

}  // namespace

CheckpointHistory::CheckpointHistory(const fs::path& folder) : folder_(folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const auto step = step_in_name(entry.path());
    if (!step || !entry.is_directory()) continue;
    Entry found{.path = entry.path(), .step = *step, .manifest = manifest_of(entry.path())};
    if (found.manifest && found.manifest->step != *step)
      misnamed_.push_back(
          fmt::format("{} holds step {}, which is not what its name says; it is "
                      "passed over",
                      found.path.string(), found.manifest->step));
    else
      entries_.push_back(std::move(found));
  }
  std::ranges::sort(entries_, {}, &Entry::step);
  // The damaged ones keep their place behind the step before them.
  std::vector<std::pair<std::int64_t, Entry>> order;
  std::int64_t before = 0;
  for (Entry& entry : entries_) {
    if (entry.manifest) before = entry.manifest->lineage.save();
    order.emplace_back(before, std::move(entry));
  }
  std::ranges::stable_sort(order, {}, [](const auto& pair) { return pair.first; });
  entries_.clear();
  for (auto& [save, entry] : order)
    entries_.push_back(std::move(entry));
  if (!order.empty()) last_save_ = order.back().first;
  last_save_ = std::max(last_save_, highest_save(folder / "set-aside"));
  try {
    if (const auto point = read_point(folder)) last_save_ = std::max(last_save_, point->saves);
  } catch (const Error&) {  // resume_point() tells of it, where it is needed
  }
}

std::optional<ResumePoint> CheckpointHistory::resume_point() const {
  auto point = read_point(folder_);
  const auto since = [&](const Entry& entry) {
    return entry.manifest && entry.manifest->lineage.save() > point->saves;
  };
  if (!point || std::ranges::any_of(entries_, since)) return {};
  return point;
}

fs::path CheckpointHistory::newest() const {
  if (const auto point = resume_point()) return point->checkpoint;
  return entries_.empty() ? fs::path() : entries_.back().path;
}

std::vector<CheckpointHistory::Entry> CheckpointHistory::ancestors(
    const CheckpointManifest& checkpoint) const {
  std::vector<Entry> found;
  for (const Entry& entry : entries_) {
    if (!entry.manifest) continue;
    const std::int64_t save = entry.manifest->lineage.save();
    // Programs before lineages were recorded counted by steps alone.
    const bool is = save > 0 ? checkpoint.lineage.holds(save) && save != checkpoint.lineage.save()
                             : entry.step < checkpoint.step;
    if (is) found.push_back(entry);
  }
  return found;
}

std::vector<CheckpointHistory::Entry> CheckpointHistory::removable(
    const CheckpointManifest& checkpoint) const {
  auto found = ancestors(checkpoint);
  std::erase_if(found, [&](const Entry& entry) {
    return checkpoint.lineage.named(entry.manifest->lineage.save());
  });
  return found;
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> paths;
  const CheckpointHistory history(folder);
  for (const auto& entry : history.entries())
    paths.push_back(entry.path);
  return paths;
}

void record(const ResumePoint& point, const fs::path& folder) {
  create_directories_durably(folder);
  // Relative where it can be, so that the run's folder may be moved.
  const bool here = fs::equivalent(folder_of(point.checkpoint), folder);
  const fs::path whole = fs::canonical(point.checkpoint);
  const std::string text =
      Json{
          {"checkpoint", (here ? whole.lexically_relative(fs::canonical(folder)) : whole).string()},
          {"skip_batches", point.skip_batches},
          {"saves", point.saves}}
          .dump() +
      "\n";
  write_file_durably(folder / point_file, std::as_bytes(std::span(text)));
}

void forget_resume_point(const fs::path& folder) {
  if (fs::remove(folder / point_file)) sync_directory(folder);
}

void remove_old_checkpoints(const fs::path& saved, std::int64_t keep) {
  const CheckpointManifest manifest = read_manifest(saved);
  const auto older = CheckpointHistory(saved.parent_path()).removable(manifest);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) <= older.size(); ++i)
    remove_checkpoint(older[i].path);
}

}  // namespace sluice
