#include "apps/checkpoint/checkpoint_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <regex>
#include <span>

#include "apps/checkpoint/checkpoint_history.h"
#include "engine/io/durable.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:08}", step);
}

fs::path temporary_for(const fs::path& checkpoint, std::string_view ending = "") {
  return checkpoint.string() + fmt::format(".tmp.{}{}", getpid(), ending);
}

/// Returns the final path of a temporary; empty if it is none, or (by default) is being removed.
fs::path place_of(const fs::path& temporary, bool removed_ones) {
  static const std::regex name(R"((step-\d{8,18})\.tmp\.\d+(\.old)?)");
  std::smatch parts;
  const std::string text = temporary.filename().string();
  if (!std::regex_match(text, parts, name) || (parts[2].matched && !removed_ones)) return {};
  return temporary.parent_path() / parts[1].str();
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    entries.push_back(entry.path());
  return entries;
}

}  // namespace

fs::path checkpoint_path(const fs::path& folder, std::int64_t step) {
  return folder / step_name(step);
}

std::optional<std::int64_t> step_in_name(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  constexpr std::size_t max_digits = 18;  // fits in 63 bits
  if (!name.starts_with("step-") || name.size() < step_name(0).size() ||
      name.size() > 5 + max_digits || name.find_first_not_of("0123456789", 5) != std::string::npos)
    return {};
  return std::stoll(name.substr(5));
}

fs::path folder_of(const fs::path& checkpoint) {
  // canonical() handles a path that ends with a separator or is ".".
  const fs::path folder = fs::canonical(checkpoint).parent_path();
  return folder.filename() == "set-aside" ? folder.parent_path() : folder;
}

fs::path run_of_resume(const std::string& resume) {
  if (resume.empty()) return {};
  fs::path given = fs::path(resume).lexically_normal();
  if (!given.has_filename()) given = given.parent_path();  // ends with a separator: runs/a/
  if (fs::exists(given / "state.json")) return {};
  if (fs::is_directory(given / "checkpoints")) return given;
  if (given.filename() == "checkpoints" && fs::is_directory(given))
    return given.has_parent_path() ? given.parent_path() : fs::path(".");
  return {};
}

fs::path set_aside(const fs::path& checkpoint) {
  const fs::path folder = checkpoint.parent_path() / "set-aside";
  create_directories_durably(folder);
  const fs::path place = place_of(checkpoint, false);
  const std::string name = (place.empty() ? checkpoint : place).filename().string();
  fs::path to = folder / name;
  for (int number = 2; fs::exists(fs::symlink_status(to)); ++number)
    to = folder / fmt::format("{}-{}", name, number);
  rename_durably(checkpoint, to);
  return to;
}

void remove_checkpoint(const fs::path& checkpoint) {
  const fs::path unnamed = temporary_for(checkpoint, ".old");
  rename_durably(checkpoint, unnamed);
  std::error_code error;
  do {
    fs::remove_all(unnamed, error);
  } while (error == std::errc::interrupted);
  // The rest keeps a temporary's name; the next run removes it.
  if (error) fail(fmt::format("cannot remove {}: {}", unnamed.string(), error.message()));
}

fs::path place_of_unnamed(const fs::path& temporary) {
  const fs::path place = place_of(temporary, false);
  if (place.empty() || fs::exists(fs::symlink_status(place))) return {};
  if (!fs::exists(temporary / "state.json")) return {};  // state.json is written last
  try {
    const CheckpointManifest manifest = read_manifest(temporary);
    if (manifest.step != step_in_name(place)) return {};
    verify_files(temporary, manifest);
    return place;
  } catch (const Error&) {
    return {};
  }
}

fs::path named(const fs::path& checkpoint) {
  const fs::path place = place_of(checkpoint, false);
  if (place.empty() || fs::exists(fs::symlink_status(place))) return checkpoint;
  rename_durably(checkpoint, place);
  return place;
}

void remove_temporaries(const fs::path& folder) {
  for (const fs::path& entry : entries_of(folder))
    if (!place_of(entry, true).empty() ||
        temporary_of(entry.filename().string()) == CheckpointHistory::point_file)
      fs::remove_all(entry);
}

NewCheckpoint::NewCheckpoint(const fs::path& folder, std::int64_t step)
    : path_(checkpoint_path(folder, step)), temporary_(temporary_for(path_)) {
  create_directories_durably(folder);
  fs::remove_all(temporary_);
  if (!fs::create_directory(temporary_))
    fail(fmt::format("cannot make the folder {}: there is one already", temporary_.string()));
}

NewCheckpoint::~NewCheckpoint() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

fs::path NewCheckpoint::publish(const CheckpointManifest& manifest) {
  const std::string text = to_text(manifest);
  write_file_durably(file("state.json"), std::as_bytes(std::span(text)));
  sync_directory(temporary_);
  // The run has set aside what it abandons, so another process has put this one here.
  fs::path before;
  if (fs::exists(fs::symlink_status(path_))) before = set_aside(path_);
  rename_durably(temporary_, path_);
  return before;
}

}  // namespace sluice
