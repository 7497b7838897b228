#include "apps/output/run_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "apps/output/output_file.h"
#include "engine/io/durable.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* lock_file = "run.lock";

std::string folder_name_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char name[32];
  std::strftime(name, sizeof name, "%Y%m%d-%H%M%S", &local);
  return name;
}

/// Throws Error (usage) if the folder could not be written; does not create it.
void require_writable(const fs::path& output) {
  fs::path existing = fs::absolute(output);
  while (!fs::exists(existing) && existing.has_relative_path())
    existing = existing.parent_path();
  if (!fs::is_directory(existing) || access(existing.c_str(), W_OK | X_OK) != 0)
    fail(fmt::format("--output {} cannot be written: {} is {}", output.string(), existing.string(),
                     fs::is_directory(existing) ? "not writable" : "not a folder"),
         ErrorKind::usage);
}

/// Returns true if stdout or stderr goes to this file.
bool is_our_output(const fs::path& file) {
  struct stat one {
  }, other{};
  if (::stat(file.c_str(), &one) != 0) return false;
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO})
    if (::fstat(descriptor, &other) == 0 && one.st_dev == other.st_dev &&
        one.st_ino == other.st_ino)
      return true;
  return false;
}

/// Recognises the folder of a run by a version that wrote no run.lock.
bool has_checkpoints(const fs::path& output) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(output / "checkpoints", none))
    if (entry.path().filename().string().starts_with("step-") &&
        fs::exists(entry.path() / "state.json"))
      return true;
  return false;
}

void require_runs_folder(const fs::path& output) {
  if (fs::exists(output / lock_file) || has_checkpoints(output)) return;
  for (const auto& entry : fs::directory_iterator(output))
    // Rank 0 may have begun to write meanwhile, with the lock first.
    if (!is_our_output(entry.path()) && !fs::exists(output / lock_file))
      fail(fmt::format("--output {} is no run's folder, and it is not empty: it holds {}; give a "
                       "new folder",
                       output.string(), entry.path().filename().string()),
           ErrorKind::usage);
}

}  // namespace

void require_run_or_new(const fs::path& output) {
  require_folder_name("--output", output);
  if (fs::exists(output)) require_runs_folder(output);
}

void require_other_model(const fs::path& model, const fs::path& output) {
  std::error_code none;
  for (const char* const name : {"model", "best"})
    if (!model.empty() && fs::equivalent(model, output / name, none))
      fail(fmt::format("--model {} is what a run with --output {} replaces; give another --output",
                       model.string(), output.string()),
           ErrorKind::usage);
}

RunFolder::RunFolder(const std::string& given, std::string program)
    : path_(given), program_(std::move(program)) {
  require_writable(given.empty() ? "runs" : given);
  if (given.empty())
    reserve();
  else if (fs::exists(path_))
    require_runs_folder(path_);
  if (fs::exists(path_ / lock_file) || has_checkpoints(path_)) lock_.emplace(path_ / lock_file);
}

RunFolder::~RunFolder() {
  std::error_code ignored;
  if (begun_ || made_.empty()) return;
  fs::remove(made_, ignored);
  fs::remove(made_.parent_path(), ignored);  // runs/, if it is empty
}

void RunFolder::reserve() {
  const fs::path first = fs::path("runs") / folder_name_now();
  create_directories_durably("runs");
  path_ = first;
  for (int number = 2; ::mkdir(path_.c_str(), 0777) != 0; ++number) {
    if (errno != EEXIST)
      fail(fmt::format("cannot make the folder {}: {}; give --output", path_.string(),
                       std::strerror(errno)),
           ErrorKind::usage);
    path_ = fmt::format("{}-{}", first.string(), number);
  }
  made_ = path_;
}

void RunFolder::begin() {
  create_directories_durably(path_);
  if (!lock_) {
    // Another process may have made the folder meanwhile.
    require_runs_folder(path_);
    lock_.emplace(path_ / lock_file);
    if (has_checkpoints(path_))
      fail(fmt::format(
               "another run has trained in --output {} meanwhile; start this one again to go "
               "on with it",
               path_.string()),
           ErrorKind::usage);
  }
  lock_->begin(program_);
  begun_ = true;
}

}  // namespace sluice
