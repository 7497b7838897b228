#include "parallel/ring_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "kernels/base/error.h"
#include "parallel/ring_layout.h"

namespace sluice {

struct RingFile::Mapped : RingLayout {};

namespace {

std::int64_t now() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

/// Cut where it is too long, but not inside a character of several bytes.
template <std::size_t bytes>
void write_text(std::array<char, bytes>& to, std::string_view text) {
  if (text.size() > bytes) {
    std::size_t end = bytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U)
      --end;
    text = text.substr(0, end);
  }
  to.fill('\0');
  std::ranges::copy(text, to.begin());
}

/// A reader takes what changes here as a whole or not at all. The additions also keep compiler and
/// processor from moving the change out from between them.
template <typename Change>
void change_as_one(std::uint64_t& version, Change change) {
  const std::atomic_ref<std::uint64_t> counter(version);
  counter.fetch_add(1, std::memory_order_acquire);
  change();
  counter.fetch_add(1, std::memory_order_release);
}

/// A descriptor that is closed, and a file that is removed again unless all went well.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path) : path_(path) {
    constexpr mode_t mode_before_umask = 0666;
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode_before_umask);
    if (descriptor_ >= 0) return;
    if (errno == EEXIST)
      sluice::fail(fmt::format("{} is there already, from an earlier run or from another process: "
                               "give the ranks of a run an empty folder of their own",
                               path.string()),
                   ErrorKind::usage);
    const bool users_path = errno == ENOENT || errno == ENOTDIR || errno == EACCES;
    fail_with("create", errno, users_path ? ErrorKind::usage : ErrorKind::runtime);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    ::close(descriptor_);
    if (!kept_) ::unlink(path_.c_str());
  }

  void* map(std::size_t bytes) {
    int reason = EINTR;
    while (reason == EINTR)
      reason = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
    if (reason != 0) fail_with(fmt::format("reserve the {} bytes of", bytes), reason);
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (memory == MAP_FAILED) fail_with("map", errno);
    kept_ = true;
    return memory;
  }

 private:
  [[noreturn]] void fail_with(std::string_view action, int reason,
                              ErrorKind kind = ErrorKind::runtime) const {
    sluice::fail(fmt::format("cannot {} {}, where a rank keeps what it is doing: {}", action,
                             path_.string(), std::generic_category().message(reason)),
                 kind);
  }

  const std::filesystem::path& path_;
  int descriptor_ = -1;
  bool kept_ = false;
};

}  // namespace

RingFile::RingFile(const std::filesystem::path& folder, int rank, int size)
    : path_(ring_path(folder, rank)) {
  check(size > 0 && rank >= 0 && rank < size, "a ring file is of one of the job's ranks");
  mapped_ = static_cast<Mapped*>(NewFile(path_).map(sizeof(Mapped)));
  const ProcessId process = this_process();
  RingHeader& header = mapped_->header;
  header.version = RingHeader::version_value;
  header.slots = operations_kept;
  header.rank = rank;
  header.size = size;
  header.pid = process.pid;
  header.started = now();
  header.process_started = process.started;
  header.pid_namespace = process.namespace_;
  write_text(header.host, process.host);
  std::atomic_ref(header.magic).store(RingHeader::magic_value, std::memory_order_release);
}

RingFile::~RingFile() {
  ::munmap(mapped_, sizeof(Mapped));
}

std::uint64_t RingFile::begin(std::string_view communicator, const Signature& signature) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = begun_++;
  RingSlot& slot = mapped_->slots[number % operations_kept];
  change_as_one(slot.version, [&] {
    slot.number = number;
    slot.begin = now();
    slot.end = 0;
    write_text(slot.communicator, communicator);
    slot.signature = signature;
  });
  return number;
}

void RingFile::end(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  RingSlot& slot = mapped_->slots[number % operations_kept];
  if (number >= begun_ || slot.number != number) return;
  // The clock may have been set back meanwhile.
  const std::int64_t time = std::max(now(), slot.begin);
  std::atomic_ref(slot.end).store(time, std::memory_order_release);
}

template <typename Change>
void RingFile::change_status(Change change) {
  const std::lock_guard lock(mutex_);
  RingStatus& status = mapped_->status;
  change_as_one(status.version, [&] { change(status); });
}

void RingFile::note(std::string_view text) {
  change_status([&](RingStatus& status) { write_text(status.note, text); });
}

void RingFile::finish() {
  change_status([](RingStatus& status) {
    status.outcome = static_cast<std::uint32_t>(RankRecord::Outcome::finished);
    status.ended = now();
  });
}

void RingFile::fail(std::string_view message) {
  change_status([&](RingStatus& status) {
    status.outcome = static_cast<std::uint32_t>(RankRecord::Outcome::failed);
    status.ended = now();
    write_text(status.message, message);
  });
}

std::filesystem::path ring_path(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("rank-{}.ring", rank);
}

}  // namespace sluice
