#include "apps/train/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "engine/io/durable.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:08}", step);
}

bool is_checkpoint_name(std::string_view name) {
  return name.starts_with("step-") && name.size() >= step_name(0).size() &&
         name.find_first_not_of("0123456789", 5) == std::string_view::npos;
}

fs::path temporary_of(const fs::path& checkpoint, std::string_view ending = "") {
  return checkpoint.string() + fmt::format(".tmp.{}{}", getpid(), ending);
}

/// Takes its name away before anything of it.
void remove_checkpoint(const fs::path& checkpoint) {
  const fs::path unnamed = temporary_of(checkpoint, ".old");
  rename_durably(checkpoint, unnamed);
  std::error_code error;
  do {
    fs::remove_all(unnamed, error);
  } while (error == std::errc::interrupted);
  // What is left of it is a temporary, which goes with the next run.
  if (error) fail(fmt::format("cannot remove {}: {}", unnamed.string(), error.message()));
}

/// Whether the two have changed places. Some file systems cannot do that at once.
bool exchange(const fs::path& one, const fs::path& other) {
  return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0;
}

}  // namespace

fs::path checkpoint_path(const fs::path& folder, std::int64_t step) {
  return folder / step_name(step);
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  if (fs::is_directory(folder))
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.is_directory() && is_checkpoint_name(entry.path().filename().string()))
        found.push_back(entry.path());
  std::ranges::sort(found, {}, [](const fs::path& path) {
    return std::pair(path.filename().string().size(), path.filename().string());
  });
  return found;
}

void remove_temporaries(const fs::path& folder) {
  if (!fs::is_directory(folder)) return;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().find(".tmp.") != std::string::npos)
      fs::remove_all(entry.path());
}

void remove_old_checkpoints(const fs::path& saved, std::int64_t keep) {
  auto others = list_checkpoints(saved.parent_path());
  // The new one stays, also where later steps of a run that was given up lie beside it.
  std::erase(others, saved);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) <= others.size(); ++i)
    remove_checkpoint(others[i]);
}

NewCheckpoint::NewCheckpoint(const fs::path& folder, std::int64_t step)
    : path_(checkpoint_path(folder, step)), temporary_(temporary_of(path_)) {
  create_directories_durably(folder);
  fs::remove_all(temporary_);
  fs::create_directory(temporary_);
}

NewCheckpoint::~NewCheckpoint() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void NewCheckpoint::publish(const CheckpointManifest& manifest) {
  const std::string text = to_text(manifest);
  write_file_durably(file("state.json"), std::as_bytes(std::span(text)));
  sync_directory(temporary_);
  // One of the same step, of a run that went back, is there until the new one is.
  if (fs::exists(path_)) {
    if (exchange(temporary_, path_)) return sync_directory(path_.parent_path());
    remove_checkpoint(path_);
  }
  rename_durably(temporary_, path_);
}

}  // namespace sluice
