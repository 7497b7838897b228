#include "apps/train/output_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <ctime>

#include "kernels/base/error.h"

namespace sluice {

namespace fs = std::filesystem;

fs::path output_folder(const std::string& given) {
  if (!given.empty()) return given;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char name[32];
  std::strftime(name, sizeof name, "%Y%m%d-%H%M%S", &local);
  return fs::path("runs") / name;
}

void require_writable(const fs::path& output) {
  fs::path existing = fs::absolute(output);
  while (!fs::exists(existing) && existing.has_relative_path())
    existing = existing.parent_path();
  if (!fs::is_directory(existing) || access(existing.c_str(), W_OK | X_OK) != 0)
    fail(fmt::format("--output {} cannot be written: {} is {}", output.string(), existing.string(),
                     fs::is_directory(existing) ? "not writable" : "not a folder"),
         ErrorKind::usage);
}

}  // namespace sluice
