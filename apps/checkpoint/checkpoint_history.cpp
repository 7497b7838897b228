#include "apps/checkpoint/checkpoint_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/checkpoint/checkpoint_folder.h"
#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "engine/io/utf8.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::optional<CheckpointManifest> manifest_of(const fs::path& checkpoint) {
  try {
    return read_manifest(checkpoint);
  } catch (const Error&) {
    return {};
  }
}

std::optional<ResumePoint> read_point(const fs::path& folder) {
  const fs::path file = folder / CheckpointHistory::point_file;
  if (!fs::exists(file)) return {};
  try {
    const Json json = read_json_file(file, 1 << 16);
    constexpr std::int64_t most = std::int64_t{1} << 62;
    return ResumePoint{.checkpoint = folder / json.at("checkpoint").get<std::string>(),
                       .named = json.at("named").get<bool>(),
                       .skip_batches = whole_number(json.at("skip_batches"), 0, most, file),
                       .saves = whole_number(json.at("saves"), 0, most, file),
                       .keep = whole_number(json.at("keep"), 0, most, file)};
  } catch (const std::exception&) {
    fail(
        fmt::format("{} is damaged: it does not say which checkpoint the run was to go on from; "
                    "give --resume PATH",
                    file.string()));
  }
}

}  // namespace

CheckpointHistory::CheckpointHistory(const fs::path& folder, bool with_unnamed) : folder_(folder) {
  std::error_code none;
  std::vector<Entry> unnamed;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (!entry.is_directory()) continue;
    if (const fs::path place = with_unnamed ? place_of_unnamed(entry.path()) : fs::path();
        !place.empty())
      unnamed.push_back({.path = entry.path(),
                         .step = *step_in_name(place),
                         .manifest = manifest_of(entry.path())});
    const auto step = step_in_name(entry.path());
    if (!step) continue;
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
  // A damaged one has no save number and takes that of the checkpoint of the next lower step.
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
  for (Entry& entry : unnamed) {
    if (entry.manifest->lineage.save() <= last_save_) continue;
    last_save_ = entry.manifest->lineage.save();
    entries_.push_back(std::move(entry));
  }
  // Checkpoints that were set aside count too.
  const auto saved = [&](const CheckpointManifest& manifest) {
    named_.insert(manifest.lineage.named().begin(), manifest.lineage.named().end());
    if (manifest.lineage.save() < last_save_ || manifest.keep == 0) return;
    last_save_ = manifest.lineage.save();
    keep_ = manifest.keep;
  };
  for (const Entry& entry : entries_)
    if (entry.manifest) saved(*entry.manifest);
  for (const auto& entry : fs::directory_iterator(folder / "set-aside", none))
    if (const auto manifest = manifest_of(entry.path())) saved(*manifest);
  try {
    if (const auto point = read_point(folder); point && point->saves >= last_save_) {
      last_save_ = point->saves;
      keep_ = point->keep;
    }
  } catch (const Error&) {  // resume_point() reports it when it is needed
  }
}

std::optional<ResumePoint> CheckpointHistory::resume_point() const {
  return read_point(folder_);
}

std::vector<ResumePoint> CheckpointHistory::candidates() const {
  const auto point = resume_point();
  const auto step = point ? step_in_name(point->checkpoint) : std::nullopt;
  std::vector<ResumePoint> found;
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    const bool since = !point || (entry->manifest ? entry->manifest->lineage.save() > point->saves
                                                  : entry->step > step.value_or(0));
    if (since) found.push_back({.checkpoint = entry->path});
  }
  if (point && fs::is_directory(point->checkpoint)) found.push_back(*point);
  return found;
}

fs::path CheckpointHistory::newest() const {
  const auto all = candidates();
  return all.empty() ? fs::path() : all.front().checkpoint;
}

std::vector<CheckpointHistory::Entry> CheckpointHistory::ancestors(
    const CheckpointManifest& checkpoint) const {
  std::vector<Entry> found;
  for (const Entry& entry : entries_) {
    if (!entry.manifest) continue;
    const std::int64_t save = entry.manifest->lineage.save();
    // Checkpoints from before lineages were recorded are compared by step alone.
    const bool is = save > 0 ? checkpoint.lineage.holds(save) && save != checkpoint.lineage.save()
                             : entry.step < checkpoint.step;
    if (is) found.push_back(entry);
  }
  return found;
}

std::vector<CheckpointHistory::Entry> CheckpointHistory::removable(
    const CheckpointManifest& checkpoint) const {
  // No manifest in the folder records yet which checkpoint this start has named.
  std::set<std::int64_t> named = named_;
  named.insert(checkpoint.lineage.named().begin(), checkpoint.lineage.named().end());
  auto found = ancestors(checkpoint);
  std::erase_if(found,
                [&](const Entry& entry) { return named.contains(entry.manifest->lineage.save()); });
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
  // The path is relative if possible, so that the run's folder may be moved.
  const bool here = fs::equivalent(folder_of(point.checkpoint), folder);
  const fs::path whole = fs::canonical(point.checkpoint);
  const fs::path path = here ? whole.lexically_relative(fs::canonical(folder)) : whole;
  if (!is_utf8(path.string()))
    fail(fmt::format("--resume {}: the name is not UTF-8, which the run's files could not hold; "
                     "move the run to another folder",
                     path.string()),
         ErrorKind::usage);
  const Json json{{"checkpoint", path.string()},
                  {"named", point.named},
                  {"skip_batches", point.skip_batches},
                  {"saves", point.saves},
                  {"keep", point.keep}};
  const std::string text = json.dump() + "\n";
  write_file_durably(folder / CheckpointHistory::point_file, std::as_bytes(std::span(text)));
}

void forget_resume_point(const fs::path& folder) {
  std::error_code none;  // if the folder is missing too, the first save reports it
  if (fs::remove(folder / CheckpointHistory::point_file, none)) sync_directory(folder);
}

void remove_old_checkpoints(const fs::path& saved, std::int64_t keep) {
  const CheckpointManifest manifest = read_manifest(saved);
  const auto older = CheckpointHistory(saved.parent_path()).removable(manifest);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) <= older.size(); ++i)
    remove_checkpoint(older[i].path);
}

}  // namespace sluice
