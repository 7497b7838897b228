#include "parallel/flight_recorder/flight_recorder.h"

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
#include "parallel/flight_recorder/record_layout.h"

namespace sluice {

struct FlightRecorder::Image : RecordLayout {};

namespace {

std::int64_t now() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

/// Copies a text and cuts it if it is too long, but not inside a multi-byte UTF-8 character.
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

/// A new file that is closed and removed again unless reserve() succeeds.
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

  /// Reserves so many bytes for the file and returns its descriptor.
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

FlightRecorder::FlightRecorder(const std::filesystem::path& folder, int rank, int size)
    : path_(record_path(folder, rank)), image_(std::make_unique<Image>()) {
  check(size > 0 && rank >= 0 && rank < size, "a ring file is of one of the job's ranks");
  descriptor_ = NewFile(path_).reserve(sizeof(Image));
  const ProcessId process = this_process();
  RecordHeader& header = image_->header;
  header.version = RecordHeader::version_value;
  header.slots = operations_kept;
  header.rank = rank;
  header.size = size;
  header.pid = process.pid;
  header.started = now();
  header.process_started = process.started;
  header.pid_namespace = process.namespace_;
  write_text(header.host, process.host);
  put(header);
  header.magic = RecordHeader::magic_value;
  put(header.magic);
}

FlightRecorder::~FlightRecorder() {
  ::close(descriptor_);
}

template <typename Part>
void FlightRecorder::put(const Part& part) {
  const auto* const from = reinterpret_cast<const char*>(&part);
  const auto offset = from - reinterpret_cast<const char*>(image_.get());
  static_cast<void>(::pwrite(descriptor_, from, sizeof part, offset) < 0);
}

void FlightRecorder::restore_if_truncated() {
  struct stat status {};
  const bool whole = ::fstat(descriptor_, &status) == 0 && status.st_size == sizeof(Image);
  if (!whole) put(*image_);
}

template <typename Part, typename Change>
void FlightRecorder::change_as_one(Part& part, Change change) {
  restore_if_truncated();
  ++part.version;
  put(part.version);
  change();
  put(part);
  ++part.version;
  put(part.version);
}

std::uint64_t FlightRecorder::begin(std::string_view communicator, const Signature& signature) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = begun_++;
  RecordSlot& slot = image_->slots[number % operations_kept];
  change_as_one(slot, [&] {
    slot.number = number;
    slot.begin = now();
    slot.end = 0;
    write_text(slot.communicator, communicator);
    slot.signature = signature;
  });
  return number;
}

void FlightRecorder::end(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  RecordSlot& slot = image_->slots[number % operations_kept];
  if (number >= begun_ || slot.number != number) return;
  // The system clock may have been set back meanwhile.
  slot.end = std::max(now(), slot.begin);
  restore_if_truncated();
  put(slot.end);
}

template <typename Change>
void FlightRecorder::change_status(Change change) {
  const std::lock_guard lock(mutex_);
  RecordStatus& status = image_->status;
  change_as_one(status, [&] { change(status); });
}

void FlightRecorder::note(std::string_view text) {
  change_status([&](RecordStatus& status) { write_text(status.note, text); });
}

void FlightRecorder::finish() {
  change_status([](RecordStatus& status) {
    status.outcome = static_cast<std::uint32_t>(RankRecord::Outcome::finished);
    status.ended = now();
  });
}

void FlightRecorder::fail(std::string_view message) {
  change_status([&](RecordStatus& status) {
    status.outcome = static_cast<std::uint32_t>(RankRecord::Outcome::failed);
    status.ended = now();
    write_text(status.message, message);
  });
}

std::filesystem::path record_path(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("rank-{}.ring", rank);
}

}  // namespace sluice
