#include "engine/offload/scratch_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Four transfers of megabytes at a time keep an NVMe disk busy.
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

/// Takes the disk's space now rather than in the middle of a run. Returns false if the file system
/// cannot do so; the file then takes space as it is written.
bool take_space(const File& file, const fs::path& folder, std::uint64_t bytes) {
  if (bytes == 0) return true;
  const auto repeated = [&](auto&& call) {
    int result = 0;
    do
      result = call();
    while (result != 0 && errno == EINTR);
    return result == 0;
  };
  const auto size = static_cast<off_t>(bytes);
  if (repeated([&] { return ::fallocate(file.descriptor(), 0, 0, size); })) return true;
  if (errno == EOPNOTSUPP && repeated([&] { return ::ftruncate(file.descriptor(), size); }))
    return false;
  const int error = errno;
  std::string text =
      fmt::format("cannot take {} bytes in {}: {}", bytes, folder.string(), reason());
  std::error_code unknown;
  if (error == ENOSPC)
    if (const fs::space_info space = fs::space(folder, unknown); !unknown)
      text += fmt::format("; {} bytes are free", space.available);
  fail(text);
}

bool in_memory(const File& file) {
  struct statfs found {};
  if (::fstatfs(file.descriptor(), &found) != 0) return false;
  constexpr std::uint32_t tmpfs = 0x01021994, ramfs = 0x858458f6;
  return static_cast<std::uint32_t>(found.f_type) == tmpfs ||
         static_cast<std::uint32_t>(found.f_type) == ramfs;
}

/// Makes transfers bypass the page cache, if a first one shows that they can.
bool bypass_cache(const File& file, std::uint64_t bytes) {
  const int flags = ::fcntl(file.descriptor(), F_GETFL);
  if (flags < 0 || ::fcntl(file.descriptor(), F_SETFL, flags | O_DIRECT) != 0) return false;
  if (bytes < ScratchFile::alignment) return true;
  alignas(ScratchFile::alignment) std::array<std::byte, ScratchFile::alignment> page;
  if (::pread(file.descriptor(), page.data(), page.size(), 0) >= 0) return true;
  ::fcntl(file.descriptor(), F_SETFL, flags);
  return false;
}

}  // namespace

ScratchFile::ScratchFile(const fs::path& folder, std::uint64_t bytes) : file_(open_in(folder)) {
  const bool reserved = take_space(file_, folder, bytes);
  direct_ = bypass_cache(file_, bytes);
  if (in_memory(file_))
    caution_ = fmt::format("{} is in memory, not on a disk", folder.string());
  else if (!reserved)
    caution_ = fmt::format("the file system of {} reserves no space: the disk may become full",
                           folder.string());
  else if (!direct_)
    caution_ = fmt::format("transfers to {} go through the page cache, which takes memory",
                           folder.string());
  threads_.reserve(threads);
  try {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([this] { run_jobs(); });
  } catch (const std::system_error& error) {  // fewer threads only take longer
    if (threads_.empty())
      fail(fmt::format("cannot start a thread for transfers to {}: {}", folder.string(),
                       error.code().message()));
  }
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
