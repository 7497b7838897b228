#include "tests/support/program.h"
#include "tests/support/catch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace sluice::test {
namespace {

using Clock = std::chrono::steady_clock;

int memory_file(const std::string& contents) {
  const int file = memfd_create("sluice-test", MFD_CLOEXEC);
  if (file < 0 || ::write(file, contents.data(), contents.size()) < 0 ||
      ::lseek(file, 0, SEEK_SET) != 0)
    throw std::runtime_error("cannot make a file in memory");
  return file;
}

std::string read_to_end(int file) {
  ::lseek(file, 0, SEEK_SET);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(file, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

void kill_group(pid_t process) {
  ::kill(process, SIGKILL);  // before it has become a group
  ::kill(-process, SIGKILL);
}

}  // namespace

RunningProgram::RunningProgram(const std::string& name, const Arguments& arguments,
                               const std::string& input, const std::filesystem::path& directory) {
  std::string path = (std::filesystem::path(SLUICE_BIN_DIR) / name).string();
  std::vector<char*> argv{path.data()};
  Arguments copies = arguments;
  for (auto& argument : copies)
    argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
  const int in = memory_file(input);
  out_ = ends[0];
  err_ = memory_file("");
  process_ = ::fork();
  if (process_ < 0) throw std::runtime_error("cannot start a process");
  if (process_ == 0) {
    // A group of its own, to be killed with what it starts; and its end where the test is killed.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(in, STDIN_FILENO);
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(err_, STDERR_FILENO);
    if (directory.empty() || ::chdir(directory.c_str()) == 0) ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(in);
  ::close(ends[1]);
}

RunningProgram::~RunningProgram() {
  if (process_ > 0) {
    kill_group(process_);
    ::waitpid(process_, nullptr, 0);
  }
  ::close(out_);
  ::close(err_);
}

void RunningProgram::send(int signal) const {
  ::kill(process_, signal);
}

ProgramResult RunningProgram::finish(int limit_seconds) {
  ProgramResult result;
  const auto end = Clock::now() + std::chrono::seconds(limit_seconds);
  char buffer[4096];
  for (ssize_t got = 1; got != 0;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd wait{out_, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count())) == 0) {
      kill_group(process_);
      result.timed_out = true;
      break;
    }
    got = ::read(out_, buffer, sizeof buffer);
    if (got > 0) result.out.append(buffer, static_cast<std::size_t>(got));
  }
  int status = 0;
  ::waitpid(process_, &status, 0);
  process_ = -1;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.err = read_to_end(err_);
  return result;
}

Arguments words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

ProgramResult run_program(const std::string& name, const Arguments& arguments,
                          const std::string& input, const std::filesystem::path& directory) {
  return RunningProgram(name, arguments, input, directory).finish();
}

std::string run_well(const std::string& name, const Arguments& arguments) {
  const ProgramResult result = run_program(name, arguments);
  INFO(name << (result.timed_out ? " was killed: it took too long" : "") << "; it printed:\n"
            << result.out);
  CHECK(result.err == "");
  REQUIRE(result.exit_code == 0);
  return result.out;
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = Clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace sluice::test
