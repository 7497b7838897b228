#include "engine/io/durable.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <string>
#include <system_error>
#include <utility>

#include "engine/process_state.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::filesystem::path temporary_for(const std::filesystem::path& path) {
  return path.string() + fmt::format(".tmp.{}", ::getpid());
}

/// Removes the temporaries of this path whose writers are no more. Those of other computers cannot
/// be told from them, but nobody has two computers write one file at the same time.
void remove_left_behind(const std::filesystem::path& path) {
  const std::string start = path.filename().string() + ".tmp.";
  ProcessId writer = this_process();
  writer.started = 0;  // the name tells a writer's number alone
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory_of(path), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(start)) continue;
    const char* const end = name.data() + name.size();
    const auto number = std::from_chars(name.data() + start.size(), end, writer.pid);
    if (number.ec != std::errc{} || number.ptr != end || writer.pid <= 0) continue;
    if (state_of(writer) == ProcessState::gone) std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace

void sync_file(const std::filesystem::path& path) {
  File file = File::open(path);
  file.sync();
  file.close();
}

void sync_directory(const std::filesystem::path& path) {
  File directory = File::open_directory(path);
  directory.sync();
  directory.close();
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error)
    fail(fmt::format("cannot rename {} to {}: {}", from.string(), to.string(), error.message()));
  sync_directory(directory_of(to));
  if (directory_of(from) != directory_of(to)) sync_directory(directory_of(from));
}

void create_directories_durably(const std::filesystem::path& path) {
  std::filesystem::path made;
  for (const auto& part : path) {
    made /= part;
    if (std::filesystem::is_directory(made)) continue;
    std::error_code error;
    // Made by another process in the meantime, it is as good.
    std::filesystem::create_directory(made, error);
    if (error)
      fail(fmt::format("cannot make the folder {}: {}{}", path.string(),
                       made == path ? "" : made.string() + ": ", error.message()));
    sync_directory(directory_of(made));
  }
}

void write_file_durably(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  DurableFile file(path);
  file.write(bytes);
  file.commit();
}

DurableFile::DurableFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(File::create(temporary_for(path_))) {}

DurableFile::~DurableFile() {
  if (committed_) return;
  std::error_code ignored;
  std::filesystem::remove(temporary_.path(), ignored);
}

void DurableFile::complete() {
  if (complete_) return;
  temporary_.sync();
  temporary_.close();
  complete_ = true;
}

void DurableFile::commit() {
  complete();
  rename_durably(temporary_.path(), path_);
  committed_ = true;
  remove_left_behind(path_);
}

}  // namespace sluice
