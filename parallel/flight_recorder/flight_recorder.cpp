#include "parallel/flight_recorder/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <new>
#include <system_error>

#include "kernels/base/error.h"
#include "parallel/flight_recorder/record_layout.h"
#include "parallel/flight_recorder/taken_signals.h"

namespace sluice {

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

/// A new file that is removed again unless map() succeeds.
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

  /// Reserves so many bytes for the file, so that no store to it can fail, and maps them.
  void* map(std::size_t bytes) {
    int reason = EINTR;
    while (reason == EINTR)
      reason = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
    if (reason != 0) fail_with(fmt::format("reserve the {} bytes of", bytes), reason);
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (mapped == MAP_FAILED) fail_with("map", errno);
    kept_ = true;
    return mapped;
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

/// The mapped files of this process: one for each rank, of which only tests have several.
std::array<std::atomic<std::byte*>, 64> mapped_records{};

struct sigaction previous_action {};  ///< of SIGBUS: the program may have one of its own

/// A store to a mapped file that somebody has truncated is answered by SIGBUS. Memory without a
/// file takes the place of such a record, and the store is repeated. Other accesses are the
/// program's.
void replace_truncated(int signal, siginfo_t* info, void*) {
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  for (const auto& mapped : mapped_records) {
    std::byte* const from = mapped.load();
    if (from == nullptr || at < from || at >= from + sizeof(RecordLayout)) continue;
    if (::mmap(from, sizeof(RecordLayout), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
      return;
  }
  ::sigaction(signal, &previous_action, nullptr);
  if (info->si_code <= 0) ::raise(signal);  // sent by a process: no access will be repeated
}

void protect(std::byte* record) {
  static const bool installed = [] {
    take_back_signal(SIGBUS);
    struct sigaction action {};
    action.sa_sigaction = replace_truncated;
    action.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGBUS, &action, &previous_action) == 0;
  }();
  for (auto& mapped : mapped_records) {
    std::byte* none = nullptr;
    if (installed && mapped.compare_exchange_strong(none, record)) return;
  }
}

void forget(std::byte* record) {
  for (auto& mapped : mapped_records)
    if (mapped.load() == record) mapped = nullptr;
}

}  // namespace

FlightRecorder::FlightRecorder(const std::filesystem::path& folder, int rank, int size)
    : path_(record_path(folder, rank)) {
  check(size > 0 && rank >= 0 && rank < size, "a ring file is of one of the job's ranks");
  record_ = new (NewFile(path_).map(sizeof(RecordLayout))) RecordLayout;
  protect(reinterpret_cast<std::byte*>(record_));
  const ProcessId process = this_process();
  RecordHeader& header = record_->header;
  header.version = RecordHeader::version_value;
  header.slots = operations_kept;
  header.rank = rank;
  header.size = size;
  header.pid = process.pid;
  header.started = now();
  header.process_started = process.started;
  header.pid_namespace = process.namespace_;
  write_text(header.host, process.host);
  std::atomic_ref(header.magic).store(RecordHeader::magic_value, std::memory_order_release);
}

FlightRecorder::~FlightRecorder() {
  forget(reinterpret_cast<std::byte*>(record_));
  ::munmap(record_, sizeof(RecordLayout));
}

template <typename Part, typename Change>
void FlightRecorder::change_as_one(Part& part, Change change) {
  const std::atomic_ref version(part.version);
  version.fetch_add(1);
  change();
  version.fetch_add(1);
}

std::uint64_t FlightRecorder::begin(std::string_view communicator, const Signature& signature) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = begun_++;
  RecordSlot& slot = record_->slots[number % operations_kept];
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
  RecordSlot& slot = record_->slots[number % operations_kept];
  if (number >= begun_ || slot.number != number) return;
  // The system clock may have been set back meanwhile.
  std::atomic_ref(slot.end).store(std::max(now(), slot.begin), std::memory_order_release);
}

template <typename Change>
void FlightRecorder::change_status(Change change) {
  const std::lock_guard lock(mutex_);
  RecordStatus& status = record_->status;
  change_as_one(status, [&] { change(status); });
}

void FlightRecorder::set_gpu(std::string_view uuid) {
  change_status([&](RecordStatus& status) { write_text(status.gpu, uuid); });
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
