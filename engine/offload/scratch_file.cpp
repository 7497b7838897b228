#include "engine/offload/scratch_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// So many transfers of megabytes keep a disk busy.
constexpr int threads = 4;

std::string reason() {
  return std::generic_category().message(errno);
}

File open_in(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    fail(fmt::format("'{}' is not a folder: give one on the disk that shall hold the data",
                     folder.string()),
         ErrorKind::usage);
  try {
    return File::temporary(folder);
  } catch (const Error& cause) {  // for example a folder that may not be written to
    fail(cause.what(), ErrorKind::usage);
  }
}

/// Takes the disk's space now rather than in the middle of a run.
void take_space(File& file, const fs::path& folder, std::uint64_t bytes) {
  if (bytes == 0) return;
  int result = 0;
  do
    result = ::fallocate(file.descriptor(), 0, 0, static_cast<off_t>(bytes));
  while (result != 0 && errno == EINTR);
  if (result == 0) return;
  if (errno == EOPNOTSUPP) return file.truncate(bytes);  // zeros that take no space yet
  const std::string why = reason();
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  fail(fmt::format("cannot take {} bytes in {}: {}{}", bytes, folder.string(), why,
                   error ? std::string() : fmt::format("; {} bytes are free", space.available)));
}

bool bypass_cache(const File& file) {
  const int flags = ::fcntl(file.descriptor(), F_GETFL);
  return flags >= 0 && ::fcntl(file.descriptor(), F_SETFL, flags | O_DIRECT) == 0;
}

}  // namespace

ScratchFile::ScratchFile(const fs::path& folder, std::uint64_t bytes) : file_(open_in(folder)) {
  take_space(file_, folder, bytes);
  direct_ = bypass_cache(file_);
  for (int i = 0; i < threads; ++i)
    threads_.emplace_back([this] { run_jobs(); });
}

ScratchFile::~ScratchFile() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_)
    thread.join();
}

void ScratchFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  file_.read_at(offset, out);
  if (!direct_) file_.drop_cache(offset, out.size());
}

void ScratchFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  file_.write_at(offset, bytes);
}

std::shared_future<void> ScratchFile::start(std::function<void()> work) {
  Job job{.work = std::move(work)};
  std::shared_future<void> result = job.done.get_future().share();
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return result;
}

void ScratchFile::run_jobs() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    try {
      job.work();
      job.done.set_value();
    } catch (...) {
      job.done.set_exception(std::current_exception());
    }
    job.work = {};
    lock.lock();
  }
}

}  // namespace sluice
