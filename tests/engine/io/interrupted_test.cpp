#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

// A signal ends the system call that it falls into, which then has to be made again.

namespace sluice::test::io_interrupted_test {
namespace {

std::atomic<int> signals = 0;

/// Handles SIGUSR1 and, in contrast to what programs ask for, lets it interrupt system calls.
class Interrupting {
 public:
  Interrupting() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++signals; };
    ::sigaction(SIGUSR1, &action, &before_);
  }
  ~Interrupting() { ::sigaction(SIGUSR1, &before_, nullptr); }
  Interrupting(const Interrupting&) = delete;
  Interrupting& operator=(const Interrupting&) = delete;

 private:
  struct sigaction before_ {};
};

/// True if the thread of this process waits in a system call.
bool waits(pid_t thread) {
  const std::string state = read_file("/proc/self/task/" + std::to_string(thread) + "/stat");
  return state.at(state.rfind(')') + 2) == 'S';
}

/// Calls `call`, which waits until `release` is called by another thread. The signals before that
/// find it waiting.
template <class Call, class Release>
void interrupted(Call&& call, Release&& release) {
  const pthread_t self = ::pthread_self();
  const auto id = static_cast<pid_t>(::syscall(SYS_gettid));
  std::atomic<bool> over = false;
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) {
      while (!over && !waits(id))
        std::this_thread::yield();
      const int before = signals;
      if (!over) ::pthread_kill(self, SIGUSR1);
      while (!over && signals == before)
        std::this_thread::yield();
    }
    if (!over) release();  // a call that has failed waits for nothing
  });
  std::string error;
  try {
    call();
  } catch (const std::exception& failed) {
    error = failed.what();
  }
  over = true;
  other.join();
  CHECK(error == "");
}

}  // namespace

TEST_CASE("a signal in the middle of a file's operations is no error", "[io][threads]") {
  const TempDir dir;
  const Interrupting interrupting;
  const fs::path pipe = dir.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  // Whoever opens one end of a pipe waits for the other; an end of its own keeps it from that.
  std::array<std::byte, 4> text{};
  {
    std::optional<File> writer, reader;
    interrupted([&] { reader = File::open_stream(pipe); }, [&] { writer = File::append(pipe); });
    REQUIRE((reader && writer));
    interrupted([&] { CHECK(reader->read(text) == 4); },
                [&] { writer->write(std::as_bytes(std::span("text", 4))); });
    CHECK(text[3] == std::byte{'t'});
  }
  std::optional<File> writer, reader;
  interrupted([&] { writer = File::append(pipe); }, [&] { reader = File::open_stream(pipe); });
  REQUIRE((reader && writer));
  // More than a pipe holds.
  const std::vector<std::byte> much(std::size_t{1} << 20, std::byte{7});
  std::size_t got = 0;
  interrupted([&] { writer->write(much); },
              [&] {
                std::vector<std::byte> some(much.size());
                while (got < much.size())
                  got += reader->read(some);
              });
  CHECK(got == much.size());
}

}  // namespace sluice::test::io_interrupted_test
