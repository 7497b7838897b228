#include "engine/io/durable.h"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "kernels/base/error.h"

namespace sluice {
namespace {

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::filesystem::path temporary_for(const std::filesystem::path& path) {
  return path.string() + fmt::format(".tmp.{}", ::getpid());
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

void DurableFile::commit() {
  temporary_.sync();
  temporary_.close();
  rename_durably(temporary_.path(), path_);
  committed_ = true;
}

}  // namespace sluice
