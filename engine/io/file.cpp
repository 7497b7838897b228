#include "engine/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>

#include "kernels/base/checked_math.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

[[noreturn]] void fail_with_errno(std::string_view action, const std::filesystem::path& path,
                                  ErrorKind kind = ErrorKind::runtime,
                                  SourceLine where = SourceLine::current()) {
  const std::string reason = std::generic_category().message(errno);
  fail(fmt::format("cannot {} {}: {}", action, path.string(), reason), kind, where);
}

/// Repeats a system call that a signal interrupted.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR)
    result = call();
  return result;
}

int open_descriptor(const std::filesystem::path& path, int flags) {
  constexpr mode_t mode_before_umask = 0666;
  return uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode_before_umask); });
}

[[noreturn]] void fail_to_open(std::string_view action, const std::filesystem::path& path) {
  const bool users_path =
      errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EISDIR || errno == EROFS;
  fail_with_errno(action, path, users_path ? ErrorKind::usage : ErrorKind::runtime);
}

struct stat status_of(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail_with_errno("examine", path);
  return status;
}

}  // namespace

File::File(int descriptor, std::filesystem::path path)
    : descriptor_(descriptor), path_(std::move(path)) {}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File File::open(std::filesystem::path path) {
  // open() without O_NONBLOCK would wait for a pipe's writer.
  const int descriptor = open_descriptor(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) fail_to_open("open", path);
  File file(descriptor, std::move(path));
  if (!S_ISREG(status_of(descriptor, file.path_).st_mode))
    fail(fmt::format("{} is not a regular file", file.path_.string()), ErrorKind::usage);
  return file;
}

File File::open_stream(std::filesystem::path path) {
  const int descriptor = open_descriptor(path, O_RDONLY);
  if (descriptor < 0) fail_to_open("open", path);
  return File(descriptor, std::move(path));
}

File File::standard_input() {
  const std::filesystem::path name = "the standard input";
  const int descriptor = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) fail_with_errno("open", name, ErrorKind::usage);
  return File(descriptor, name);
}

File File::temporary(const std::filesystem::path& folder) {
  std::string name = (folder / "sluice-XXXXXX").string();
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) fail_with_errno("make a temporary file in", folder);
  ::unlink(name.c_str());
  return File(descriptor, "the unnamed file in " + folder.string());
}

File File::create(std::filesystem::path path) {
  const int descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (descriptor < 0) fail_with_errno("create", path);
  return File(descriptor, std::move(path));
}

File File::create_part(std::filesystem::path path, std::uint64_t offset) {
  const int descriptor = open_descriptor(path, O_WRONLY | O_CREAT);
  if (descriptor < 0) fail_with_errno("create", path);
  File file(descriptor, std::move(path));
  if (offset > 0 && ::lseek(descriptor, static_cast<off_t>(offset), SEEK_SET) < 0)
    fail_with_errno("write", file.path_);
  return file;
}

File File::create_new(std::filesystem::path path) {
  const int descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (descriptor < 0) fail_with_errno("create", path);
  return File(descriptor, std::move(path));
}

File File::append(std::filesystem::path path) {
  const int descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_APPEND);
  if (descriptor < 0) fail_to_open("write", path);
  return File(descriptor, std::move(path));
}

File File::open_directory(std::filesystem::path path) {
  const int descriptor = open_descriptor(path, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) fail_with_errno("open the directory", path);
  return File(descriptor, std::move(path));
}

std::uint64_t File::size() const {
  return static_cast<std::uint64_t>(status_of(descriptor_, path_).st_size);
}

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  const auto end = checked_add<std::uint64_t>(offset, out.size());
  if (!end || !checked_narrow<off_t>(*end))
    fail(fmt::format("{}: no file reaches byte {}", path_.string(), offset));
  while (!out.empty()) {
    const ssize_t got = uninterrupted(
        [&] { return ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset)); });
    if (got < 0) fail_with_errno("read", path_);
    if (got == 0)
      fail(
          fmt::format("{} ends at byte {}, but byte {} was to be read: the file was truncated "
                      "while it was in use",
                      path_.string(), offset, *end - 1));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

std::size_t File::read(std::span<std::byte> out) {
  const ssize_t got = uninterrupted([&] { return ::read(descriptor_, out.data(), out.size()); });
  if (got < 0) fail_with_errno("read", path_);
  return static_cast<std::size_t>(got);
}

void File::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put =
        uninterrupted([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
    if (put < 0) fail_with_errno("write", path_);
    if (put == 0) fail(fmt::format("cannot write {}: the system accepts no bytes", path_.string()));
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void File::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = uninterrupted([&] {
      return ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    });
    if (put < 0) fail_with_errno("write", path_);
    if (put == 0) fail(fmt::format("cannot write {}: the system accepts no bytes", path_.string()));
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

void File::truncate(std::uint64_t bytes) {
  if (uninterrupted([&] { return ::ftruncate(descriptor_, static_cast<off_t>(bytes)); }) != 0)
    fail_with_errno("cut", path_);
}

void File::sync() {
  if (uninterrupted([&] { return ::fsync(descriptor_); }) == 0) return;
  const int error = errno;
  const bool unsupported = error == EINVAL && !S_ISREG(status_of(descriptor_, path_).st_mode);
  errno = error;
  if (!unsupported) fail_with_errno("sync", path_);
}

void File::drop_cache(std::uint64_t offset, std::uint64_t bytes) const {
  // This is advice: a system that ignores it keeps the pages until it needs their memory.
  ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  POSIX_FADV_DONTNEED);
}

void File::close() {
  // Linux frees the descriptor even if close() fails, so it is never closed twice. An interrupted
  // close() has closed the descriptor.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR)
    fail_with_errno("close", path_);
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const File file = File::open(path);
  const std::uint64_t size = file.size();
  if (size > max_bytes)
    fail(fmt::format("{} has {} bytes, more than the limit of {}", path.string(), size, max_bytes),
         ErrorKind::usage);
  std::string text(size, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace sluice
