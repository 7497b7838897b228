#include "apps/output/run_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/progress.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// The size of the file never changes, so that a reader during a write finds the old state, the new
/// state, or no JSON.
constexpr std::size_t file_bytes = 1024;

/// The process that began to write the folder last.
struct Writer {
  ProcessId process{};
  std::string program, since;
  std::int64_t beats = 0;
  bool ended = false;
};

std::optional<Writer> read_writer(const fs::path& file) {
  // The file is reopened each time: network file systems show the writes of others on open.
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return {};
  std::array<char, file_bytes> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  ::close(descriptor);
  const Json json =
      Json::parse(text.data(), text.data() + std::max<ssize_t>(size, 0), nullptr, false);
  try {
    // A fraction, or a number beyond 64 bits, has no value as an integer.
    for (const char* const name : {"pid", "started", "namespace", "beats"})
      if (!json.at(name).is_number_integer()) return {};
    return Writer{.process = {.pid = json.at("pid"),
                              .host = json.at("host"),
                              .started = json.at("started"),
                              .namespace_ = json.at("namespace")},
                  .program = json.at("program"),
                  .since = json.at("since"),
                  .beats = json.at("beats"),
                  .ended = json.at("ended")};
  } catch (const Json::exception&) {
    return {};
  }
}

[[noreturn]] void refuse(const fs::path& file, const std::optional<Writer>& writer) {
  fail(fmt::format(
           "--output {} is in use: {}; wait for its end, or give another --output",
           file.parent_path().string(),
           writer ? fmt::format("process {} on {} ({}) writes it since {}", writer->process.pid,
                                writer->process.host, writer->program, writer->since)
                  : std::string("another process has just begun to write it")),
       ErrorKind::usage);
}

/// Returns true if a writer of another computer still increments its counter.
bool counts(const fs::path& file, const Writer& writer, std::chrono::milliseconds beat) {
  say_always(
      fmt::format("waiting      to see whether process {} on {}, which wrote {} last, still "
                  "does\n",
                  writer.process.pid, writer.process.host, file.parent_path().string()));
  for (int part = 0; part < 10; ++part) {
    std::this_thread::sleep_for(beat / 4);  // two and a half beats in all
    const auto now = read_writer(file);
    if (now && now->ended) return false;
    if (now && (now->beats != writer.beats || now->since != writer.since)) return true;
  }
  return false;
}

/// Takes the lock; returns false if the file system does not support locks.
bool lock(int descriptor, const fs::path& file) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) refuse(file, read_writer(file));
    if (errno != EINTR) return false;
  }
  return true;
}

void require_free(const fs::path& file, bool locked, std::chrono::milliseconds beat) {
  const auto writer = read_writer(file);
  if (!writer || writer->ended) return;
  switch (state_of(writer->process)) {
    case ProcessState::gone:
      return;
    case ProcessState::running:
    case ProcessState::stopped:
      if (!locked) refuse(file, writer);
      return;  // it no longer has the lock
    case ProcessState::unknown:
      if (counts(file, *writer, beat)) refuse(file, read_writer(file));
  }
}

}  // namespace

RunLock::RunLock(const fs::path& file, std::chrono::milliseconds beat)
    : path_(file),
      descriptor_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)),
      beat_(beat),
      self_(this_process()) {
  if (descriptor_ < 0)
    fail(fmt::format("cannot open {}: {}", file.string(), std::strerror(errno)), ErrorKind::usage);
  try {
    require_free(file, lock(descriptor_, file), beat);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

RunLock::~RunLock() {
  if (thread_.joinable()) {
    {
      const std::lock_guard guard(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
    write(true);
  }
  ::close(descriptor_);
}

void RunLock::begin(const std::string& program) {
  program_ = program;
  since_ = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  write(false);
  thread_ = std::thread([this] { count(); });
}

void RunLock::count() {
  std::unique_lock held(mutex_);
  while (!changed_.wait_for(held, beat_, [&] { return ending_; })) {
    ++beats_;
    write(false);
  }
}

void RunLock::write(bool ended) {
  std::string text = Json{
      {"program", program_},
      {"host", self_.host},
      {"pid", self_.pid},
      {"started", self_.started},
      {"namespace", self_.namespace_},
      {"since", since_},
      {"beats", beats_},
      {"ended", ended}}.dump();
  text.resize(file_bytes - 1, ' ');
  text += '\n';
  // A failed write, as on a full disk, costs other computers the warning, but does not end the run.
  [[maybe_unused]] const auto written = ::pwrite(descriptor_, text.data(), text.size(), 0);
}

}  // namespace sluice
