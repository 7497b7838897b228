#include "apps/output/output_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "engine/io/utf8.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Expects both paths with their links resolved.
bool is_within(const fs::path& path, const fs::path& folder) {
  return std::ranges::mismatch(folder, path).in1 == folder.end();
}

/// Returns true if nothing is lost by writing there: a new or an empty file, a device, a pipe.
bool is_free(const std::string& flag, const fs::path& file) {
  std::error_code none;
  if (fs::is_directory(file, none))
    fail(fmt::format("{} {} is a folder; give another name", flag, file.string()),
         ErrorKind::usage);
  return !fs::is_regular_file(file, none) || fs::file_size(file, none) == 0;
}

}  // namespace

IsOurs begins_with(std::vector<std::string> marks) {
  return [marks = std::move(marks)](const File& file) {
    const auto is_at_start = [&](const std::string& mark) {
      if (file.size() < mark.size()) return false;
      std::string start(mark.size(), '\0');
      file.read_at(0, std::as_writable_bytes(std::span(start)));
      return start == mark;
    };
    return std::ranges::any_of(marks, is_at_start);
  };
}

void add_output_file(CommandLine& line, const std::string& flag, std::string& value,
                     const std::string& what, const IsOurs& is_ours, const std::string& help) {
  line.add_output(flag, value, help,
                  [=](const std::string& file) { require_own_file(flag, file, what, is_ours); });
}

void add_unmarked_output(CommandLine& line, const std::string& flag, std::string& value,
                         const std::string& help) {
  line.add_output(flag, value, help, [=](const std::string& file) {
    if (!is_free(flag, file))
      fail(fmt::format("{} {} is there already, and this format has no mark by which a program "
                       "would know its own file; remove it or give another name",
                       flag, file),
           ErrorKind::usage);
  });
}

void require_folder_name(const std::string& flag, const fs::path& folder) {
  std::error_code none;
  if (fs::exists(folder, none) && !fs::is_directory(folder, none))
    fail(fmt::format("{} {} is not a folder; give another name", flag, folder.string()),
         ErrorKind::usage);
  if (!is_utf8(folder.string()))
    fail(fmt::format("{} {}: the name is not UTF-8, which a run's files could not hold; give "
                     "another name",
                     flag, folder.string()),
         ErrorKind::usage);
}

void require_not_input(const std::string& flag, const fs::path& file,
                       const std::vector<fs::path>& inputs) {
  for (const fs::path& input : inputs) {
    std::error_code none;  // if one does not exist, they are not equivalent
    if (fs::equivalent(file, input, none))
      fail(fmt::format("{} would overwrite {}, which is read; give another name", flag,
                       file.string()),
           ErrorKind::usage);
  }
}

void require_own_file(const std::string& flag, const fs::path& file, const std::string& what,
                      const IsOurs& is_ours) {
  if (!is_free(flag, file) && !is_ours(File::open(file)))
    fail(fmt::format("{} {} is there already and is not {}; remove it or give another name", flag,
                     file.string(), what),
         ErrorKind::usage);
}

void require_apart(const fs::path& output, const fs::path& input, std::string_view flag) {
  const fs::path from = fs::weakly_canonical(input), to = fs::weakly_canonical(output);
  if (from == to)
    fail(fmt::format("--output is the {} folder; give another one", flag), ErrorKind::usage);
  const auto refuse = [&](const fs::path& file) {
    fail(fmt::format("--output {} would overwrite {}, which is read; give another folder",
                     output.string(), file.string()),
         ErrorKind::usage);
  };
  if (is_within(from, to) || is_within(to, from)) refuse(input);
  std::error_code error;
  for (fs::directory_iterator at(input, error), end; !error && at != end; at.increment(error)) {
    const fs::path file = fs::weakly_canonical(at->path(), error);
    if (!error && is_within(file, to)) refuse(at->path());
  }
}

}  // namespace sluice
