#include "parallel/ring_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "kernels/base/error.h"
#include "parallel/ring_layout.h"

namespace sluice {

struct RingFile::Image : RingLayout {};

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

/// A descriptor that is closed, and a file that is removed again, unless all went well.
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
    if (kept_) return;
    ::close(descriptor_);
    ::unlink(path_.c_str());
  }

  /// The descriptor, once so many bytes are the file's.
  int reserve(std::size_t bytes) {
    int reason = EINTR;
    while (reason == EINTR)
      reason = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
    if (reason != 0) fail_with(fmt::format("reserve the {} bytes of", bytes), reason);
    kept_ = true;
    return descriptor_;
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
    : path_(ring_path(folder, rank)), image_(std::make_unique<Image>()) {
  check(size > 0 && rank >= 0 && rank < size, "a ring file is of one of the job's ranks");
  descriptor_ = NewFile(path_).reserve(sizeof(Image));
  const ProcessId process = this_process();
  RingHeader& header = image_->header;
  header.version = RingHeader::version_value;
  header.slots = operations_kept;
  header.rank = rank;
  header.size = size;
  header.pid = process.pid;
  header.started = now();
  header.process_started = process.started;
  header.pid_namespace = process.namespace_;
  write_text(header.host, process.host);
  put(header);
  header.magic = RingHeader::magic_value;
  put(header.magic);
}

RingFile::~RingFile() {
  ::close(descriptor_);
}

template <typename Part>
void RingFile::put(const Part& part) {
  struct stat status {};
  const bool whole = ::fstat(descriptor_, &status) == 0 && status.st_size == sizeof(Image);
  const auto* const image = reinterpret_cast<const char*>(image_.get());
  // Somebody has cut the file: all of it once more.
  const char* const from = whole ? reinterpret_cast<const char*>(&part) : image;
  const std::size_t bytes = whole ? sizeof part : sizeof(Image);
  static_cast<void>(::pwrite(descriptor_, from, bytes, from - image) < 0);
}

template <typename Part, typename Change>
void RingFile::change_as_one(Part& part, Change change) {
  ++part.version;
  put(part.version);
  change();
  put(part);
  ++part.version;
  put(part.version);
}

std::uint64_t RingFile::begin(std::string_view communicator, const Signature& signature) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = begun_++;
  RingSlot& slot = image_->slots[number % operations_kept];
  change_as_one(slot, [&] {
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
  RingSlot& slot = image_->slots[number % operations_kept];
  if (number >= begun_ || slot.number != number) return;
  // The clock may have been set back meanwhile.
  slot.end = std::max(now(), slot.begin);
  put(slot.end);
}

template <typename Change>
void RingFile::change_status(Change change) {
  const std::lock_guard lock(mutex_);
  RingStatus& status = image_->status;
  change_as_one(status, [&] { change(status); });
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
