#include "engine/io/durable.h"

#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "engine/io/section_sums.h"
#include "engine/process_state.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

std::string place_of(const ProcessId& process) {
  const std::string text = fmt::format("{}/{}", process.host, process.namespace_);
  return fmt::format("{:08x}", crc32_of(std::as_bytes(std::span(text))));
}

/// Parses and removes a number and the point after it; the number must be formatted as fmt would.
template <class Number>
bool take_number(std::string_view& text, Number& number) {
  const std::string_view digits = text.substr(0, text.find('.'));
  const char* const end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, number);
  if (digits.size() == text.size() || read.ec != std::errc{} || read.ptr != end ||
      digits != fmt::to_string(number))
    return false;
  text.remove_prefix(digits.size() + 1);
  return true;
}

struct TemporaryName {
  std::string_view of, place;
  pid_t pid = 0;
  std::uint64_t started = 0;
};

std::optional<TemporaryName> parse_temporary(std::string_view name) {
  constexpr std::string_view mark = ".tmp.";
  const std::size_t at = name.rfind(mark);
  if (at == 0 || at == std::string_view::npos) return std::nullopt;
  TemporaryName found{.of = name.substr(0, at), .place = name.substr(at + mark.size())};
  if (!take_number(found.place, found.pid) || found.pid <= 0) return std::nullopt;
  if (!take_number(found.place, found.started)) return std::nullopt;
  if (found.place.size() != 8 ||
      found.place.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return std::nullopt;
  return found;
}

bool is_device(const std::filesystem::path& path) {
  std::error_code none;
  const auto status = std::filesystem::status(path, none);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

void remove_left_behind(const std::filesystem::path& path) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory_of(path), ignored)) {
    const std::string name = entry.path().filename().string();
    if (temporary_of(name) == path.filename().string() && writer_is_gone(name))
      std::filesystem::remove(entry.path(), ignored);
  }
}

/// Returns what a link points to; a link that points to nothing is replaced itself.
std::filesystem::path without_links(std::filesystem::path path) {
  std::error_code none;
  if (!std::filesystem::is_symlink(path, none)) return path;
  std::filesystem::path target = std::filesystem::canonical(path, none);
  return none || is_device(path) ? path : target;
}

}  // namespace

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

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

File lock_directory(const std::filesystem::path& path) {
  File directory = File::open_directory(path);
  while (::flock(directory.descriptor(), LOCK_EX) != 0 && errno == EINTR) {
  }
  return directory;
}

void create_directories_durably(const std::filesystem::path& path) {
  std::filesystem::path made;
  for (const auto& part : path) {
    made /= part;
    if (std::filesystem::is_directory(made)) continue;
    std::error_code error;
    // A folder that another process has made in the meantime serves as well.
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

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    fail(fmt::format("cannot create the folder {}: {}", path.parent_path().string(),
                     error.message()));
  write_file_durably(path, std::as_bytes(std::span(text)));
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  const ProcessId writer = this_process();
  return path.string() + fmt::format(".tmp.{}.{}.{}", writer.pid, writer.started, place_of(writer));
}

std::string_view temporary_of(std::string_view name) {
  const auto found = parse_temporary(name);
  return found ? found->of : std::string_view();
}

bool writer_is_gone(std::string_view name) {
  const auto found = parse_temporary(name);
  if (!found) return false;
  ProcessId writer = this_process();
  if (found->place != place_of(writer)) return false;
  writer.pid = found->pid;
  writer.started = found->started;
  return state_of(writer) == ProcessState::gone;
}

DurableFile::DurableFile(std::filesystem::path path)
    : path_(without_links(std::move(path))),
      in_place_(is_device(path_)),
      temporary_(in_place_ ? File::create(path_) : File::create_new(temporary_name(path_))) {}

DurableFile::~DurableFile() {
  if (committed_ || in_place_) return;
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
  if (in_place_) return;
  rename_durably(temporary_.path(), path_);
  committed_ = true;
  remove_left_behind(path_);
}

}  // namespace sluice
