#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/io/durable.h"
#include "kernels/base/checked_math.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/process/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::io_durable_test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::size_t entries_of(const std::filesystem::path& directory) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(directory), {}));
}

TEST_CASE("checked arithmetic is exact or empty", "[io]") {
  constexpr std::uint64_t max = UINT64_MAX;
  STATIC_REQUIRE(checked_add<std::uint64_t>(max - 1, 1) == max);
  STATIC_REQUIRE_FALSE(checked_add<std::uint64_t>(max, 1));
  STATIC_REQUIRE(checked_multiply<std::uint64_t>(0, max) == 0);
  STATIC_REQUIRE(checked_multiply<std::uint64_t>(max / 3, 3) == max);
  STATIC_REQUIRE_FALSE(checked_multiply<std::uint64_t>(max / 3 + 1, 3));
  STATIC_REQUIRE_FALSE(checked_multiply<std::uint8_t>(16, 16));
  STATIC_REQUIRE(checked_align<std::uint64_t>(16, 8) == 16);
  STATIC_REQUIRE(checked_align<std::uint64_t>(17, 8) == 24);
  STATIC_REQUIRE_FALSE(checked_align<std::uint64_t>(max - 1, 8));
  STATIC_REQUIRE(checked_narrow<std::int64_t>(max >> 1) == INT64_MAX);
  STATIC_REQUIRE_FALSE(checked_narrow<std::int64_t>(max));
  STATIC_REQUIRE_FALSE(checked_narrow<std::uint64_t>(-1));
}

TEST_CASE("a durable write replaces the file and leaves nothing beside it", "[io][durable]") {
  const TempDir dir;
  const auto path = dir.path() / "file";
  write_file_durably(path, bytes_of("old"));
  write_file_durably(path, bytes_of("new contents"));
  REQUIRE(read_file(path) == "new contents");
  write_file_durably(path, {});
  REQUIRE(read_file(path).empty());
  REQUIRE(entries_of(dir.path()) == 1);
}

TEST_CASE("a durable write that fails leaves the old contents alone", "[io][durable]") {
  const TempDir dir;
  const auto path = dir.path() / "file";
  write_file_durably(path, bytes_of("old"));
  const std::string large(3000, 'x');
  const std::string message = [&] {
    const FileSizeLimit limit(1000);
    return error_message([&] { write_file_durably(path, bytes_of(large)); });
  }();
  REQUIRE_THAT(message, Contains("cannot write " + path.string()) && Contains("File too large"));
  REQUIRE(read_file(path) == "old");
  REQUIRE(entries_of(dir.path()) == 1);

  SECTION("also when the rename fails") {
    const auto taken = dir.path() / "taken";
    std::filesystem::create_directory(taken);
    REQUIRE_THAT(error_message([&] { write_file_durably(taken, bytes_of("x")); }),
                 Contains("cannot rename") && Contains(taken.string()));
    REQUIRE(entries_of(dir.path()) == 2);
  }
}

/// A temporary's name as the process with this number has it now.
std::filesystem::path name_of(pid_t pid, const std::filesystem::path& path) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string started;
  for (int field = 3; field <= 22; ++field)
    fields >> started;
  const std::string mine = temporary_name(path).string();
  return path.string() + ".tmp." + std::to_string(pid) + "." + started +
         mine.substr(mine.rfind('.'));
}

TEST_CASE("what a writer that died has left is removed by the next one", "[io][durable][files]") {
  const TempDir directory;
  const auto path = directory.path() / "file";
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  siginfo_t ended;
  ::waitid(P_PID, static_cast<id_t>(dead), &ended, WEXITED | WNOWAIT);
  const std::string left = name_of(dead, path).string();
  SECTION("and that its parent has asked for") {
    ::waitpid(dead, nullptr, 0);
  }
  SECTION("and that its parent never asks for") {}
  // Those of processes that had a number before somebody else got it are left too. So many that a
  // folder, which has no order, lists one before each name that has to stay.
  const std::string place = left.substr(left.rfind('.')), parent = std::to_string(::getppid());
  write_file(left, "left");
  for (int before = 1; before < 32; ++before)
    write_file(path.string() + ".tmp." + parent + "." + std::to_string(before) + place, "left");
  // Names of a live process, of another file, of another host, and names that only look alike.
  const std::string number = std::to_string(dead);
  const std::vector<std::string> others{
      name_of(::getppid(), path).filename().string(),
      name_of(dead, path.string() + "2").filename().string(),
      name_of(dead, directory.path() / "earlier").filename().string(),
      "file.tmp." + number + ".1.00000000",
      "file.tmp." + number,
      "file.tmp." + number + ".1",
      "file.tmp.0" + number + ".1" + place,
      "file.tmp." + number + ".1" + place + ".old",
      "file.tmp." + number + ".old.mine",
      "file.tmp.-1.1" + place,
      "file.tmp." + number + ".1" + place.substr(0, 8),
      "file.tmp.backup",
      "file.tmp.x",
      "file.tmp."};
  for (const std::string& name : others)
    write_file(directory.path() / name, "stays");
  write_file_durably(path, bytes_of("whole"));
  CHECK(read_file(path) == "whole");
  for (const std::string& name : others) {
    INFO(name);
    CHECK(std::filesystem::exists(directory.path() / name));
  }
  CHECK(entries_of(directory.path()) == 1 + others.size());
  ::waitpid(dead, nullptr, 0);
}

TEST_CASE("a temporary's name is told from others, and is one process's alone",
          "[io][durable][files]") {
  const std::string mine = temporary_name("a/x.tmp.7").filename().string();
  CHECK(temporary_of(mine) == "x.tmp.7");
  CHECK_FALSE(writer_is_gone(mine));
  CHECK(mine == name_of(::getpid(), "x.tmp.7").string());
  for (const char* const name :
       {"x", "x.tmp", "x.tmp.", "x.tmp.1", "x.tmp.1.2", "x.tmp.1.2.0123456", "x.tmp.1.2.012345678",
        "x.tmp.1.2.0123456g", "x.tmp.1.2.0123ABCD", "x.tmp.01.2.01234567", "x.tmp.1.+2.01234567",
        "x.tmp.0.2.01234567", "x.tmp.-1.2.01234567", "x.tmp.1.2.01234567.old",
        "x.tmp.99999999999.2.01234567", ".tmp.1.2.01234567"}) {
    INFO(name);
    CHECK(temporary_of(name).empty());
    CHECK_FALSE(writer_is_gone(name));
  }
  CHECK(temporary_of("x.tmp.1.2.01234567") == "x");
}

TEST_CASE("a temporary is a new file: nothing that was put there is opened or followed",
          "[io][durable][files]") {
  const TempDir dir;
  const auto path = dir.path() / "file", victim = dir.path() / "victim";
  write_file(path, "old");
  write_file(victim, "somebody's");
  const auto planted = temporary_name(path);
  SECTION("a link to a file") {
    std::filesystem::create_symlink(victim, planted);
  }
  SECTION("a link to nothing yet") {
    std::filesystem::create_symlink(dir.path() / "new", planted);
  }
  SECTION("a file") {
    std::filesystem::create_hard_link(victim, planted);
  }
  CHECK_THAT(error_message([&] { write_file_durably(path, bytes_of("secret")); }),
             Contains("cannot create " + planted.string()) && Contains("File exists"));
  CHECK(read_file(path) == "old");
  CHECK(read_file(victim) == "somebody's");
  CHECK_FALSE(std::filesystem::exists(dir.path() / "new"));
}

TEST_CASE("folders are made with those above them", "[io][durable]") {
  const TempDir directory;
  create_directories_durably(directory.path() / "a" / "b" / "c");
  CHECK(std::filesystem::is_directory(directory.path() / "a" / "b" / "c"));
  create_directories_durably(directory.path() / "a" / "b" / "c");
  write_file(directory.path() / "file", "");
  CHECK_THAT(error_message([&] { create_directories_durably(directory.path() / "file" / "d"); }),
             Contains("cannot make the folder") && Contains("/file: File exists"));
}

TEST_CASE("a durable file appears at commit", "[io][durable]") {
  const TempDir dir;
  const auto path = dir.path() / "file";
  {
    DurableFile file(path);
    file.write(bytes_of("one "));
    REQUIRE_FALSE(std::filesystem::exists(path));
    file.write(bytes_of("two"));
    file.commit();
  }
  REQUIRE(read_file(path) == "one two");
  {
    DurableFile abandoned(path);
    abandoned.write(bytes_of("three"));
  }
  REQUIRE(read_file(path) == "one two");
  REQUIRE(entries_of(dir.path()) == 1);
}

TEST_CASE("files and directories are renamed and synced", "[io][durable]") {
  const TempDir dir;
  std::filesystem::create_directory(dir.path() / "a");
  std::filesystem::create_directory(dir.path() / "b");
  write_file(dir.path() / "a" / "file", "x");
  sync_file(dir.path() / "a" / "file");
  sync_directory(dir.path() / "a");
  rename_durably(dir.path() / "a" / "file", dir.path() / "b" / "file");
  rename_durably(dir.path() / "b", dir.path() / "c");
  REQUIRE(read_file(dir.path() / "c" / "file") == "x");
}

TEST_CASE("errors of files name the path and the reason", "[io][durable]") {
  const TempDir dir;
  const auto none = dir.path() / "none";
  const auto expect = [](auto action, const std::filesystem::path& path, const char* reason) {
    CHECK_THAT(error_message(action), Contains(path.string()) && Contains(reason));
  };
  expect([&] { sync_file(none); }, none, "No such file");
  expect([&] { sync_directory(none); }, none, "No such file");
  expect([&] { rename_durably(none, dir.path() / "x"); }, none, "No such file");
  expect([&] { write_file_durably(none / "x", {}); }, none / "x", "No such file");
  expect([&] { File::open(dir.path()); }, dir.path(), "not a regular file");
  try {
    File::open(none);
    FAIL("a missing file was opened");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
  }
  try {
    File::create(dir.path());
    FAIL("a directory was overwritten");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
  }
}

TEST_CASE("a pipe is refused at once", "[io][durable]") {
  const TempDir dir;
  const auto pipe = dir.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  REQUIRE_THAT(error_message([&] { File::open(pipe); }), Contains("not a regular file"));
}

TEST_CASE("reads beyond the end are errors", "[io][durable]") {
  const TempDir dir;
  const auto path = dir.path() / "file";
  write_file(path, "0123456789");
  const File file = File::open(path);
  std::string out(4, ' ');
  file.read_at(6, std::as_writable_bytes(std::span(out)));
  REQUIRE(out == "6789");
  for (const std::uint64_t offset : {std::uint64_t{7}, std::uint64_t{10}, std::uint64_t{1} << 40}) {
    const auto read = [&] { file.read_at(offset, std::as_writable_bytes(std::span(out))); };
    CHECK_THAT(error_message(read), Contains(path.string()) && Contains("truncated"));
  }
  for (const std::uint64_t offset : {std::uint64_t{1} << 63, UINT64_MAX - 3, UINT64_MAX}) {
    const auto read = [&] { file.read_at(offset, std::as_writable_bytes(std::span(out))); };
    CHECK_THAT(error_message(read), Contains("no file reaches byte"));
  }
}

}  // namespace
}  // namespace sluice::test::io_durable_test
