#include "apps/output/output_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Expects both paths with their links resolved.
bool is_within(const fs::path& path, const fs::path& folder) {
  return std::ranges::mismatch(folder, path).in1 == folder.end();
}

}  // namespace

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
                      const std::function<bool(const File&)>& is_ours) {
  std::error_code none;
  if (fs::is_directory(file, none))
    fail(fmt::format("{} {} is a folder; give another name", flag, file.string()),
         ErrorKind::usage);
  if (!fs::is_regular_file(file, none) || fs::file_size(file, none) == 0) return;
  if (!is_ours(File::open(file)))
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
