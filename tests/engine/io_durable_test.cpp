#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/io/checked_math.h"
#include "engine/io/durable.h"
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using Catch::Contains;
using test::error_message;
using test::FileSizeLimit;

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
  const test::TempDir dir;
  const auto path = dir.path() / "file";
  write_file_durably(path, bytes_of("old"));
  write_file_durably(path, bytes_of("new contents"));
  REQUIRE(test::read_file(path) == "new contents");
  write_file_durably(path, {});
  REQUIRE(test::read_file(path).empty());
  REQUIRE(entries_of(dir.path()) == 1);
}

TEST_CASE("a durable write that fails leaves the old contents alone", "[io][durable]") {
  const test::TempDir dir;
  const auto path = dir.path() / "file";
  write_file_durably(path, bytes_of("old"));
  const std::string large(3000, 'x');
  const std::string message = [&] {
    const FileSizeLimit limit(1000);
    return error_message([&] { write_file_durably(path, bytes_of(large)); });
  }();
  REQUIRE_THAT(message, Contains("cannot write " + path.string()) && Contains("File too large"));
  REQUIRE(test::read_file(path) == "old");
  REQUIRE(entries_of(dir.path()) == 1);

  SECTION("also when the rename fails") {
    const auto taken = dir.path() / "taken";
    std::filesystem::create_directory(taken);
    REQUIRE_THAT(error_message([&] { write_file_durably(taken, bytes_of("x")); }),
                 Contains("cannot rename") && Contains(taken.string()));
    REQUIRE(entries_of(dir.path()) == 2);
  }
}

TEST_CASE("what a writer that died has left is removed by the next one", "[io][durable]") {
  const test::TempDir directory;
  const auto path = directory.path() / "file";
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  SECTION("and that its parent has asked for") {
    ::waitpid(dead, nullptr, 0);
  }
  SECTION("and that its parent never asks for") {
    siginfo_t ended;
    ::waitid(P_PID, static_cast<id_t>(dead), &ended, WEXITED | WNOWAIT);
  }
  // So many that a folder, which has no order, lists one before each name that has to stay.
  std::string number = std::to_string(dead);
  for (int zeros = 0; zeros < 32; ++zeros, number.insert(0, 1, '0'))
    test::write_file(path.string() + ".tmp." + number, "left");
  // Of a process that lives, of another file, and what only looks alike.
  const std::vector<std::string> others{"file.tmp." + std::to_string(::getppid()),
                                        "other.tmp." + std::to_string(dead), "file.tmp.x",
                                        "file.tmp."};
  for (const std::string& name : others)
    test::write_file(directory.path() / name, "stays");
  write_file_durably(path, bytes_of("whole"));
  CHECK(test::read_file(path) == "whole");
  for (const std::string& name : others)
    CHECK(std::filesystem::exists(directory.path() / name));
  CHECK(entries_of(directory.path()) == 1 + others.size());
  ::waitpid(dead, nullptr, 0);
}

TEST_CASE("folders are made with those above them", "[io][durable]") {
  const test::TempDir directory;
  create_directories_durably(directory.path() / "a" / "b" / "c");
  CHECK(std::filesystem::is_directory(directory.path() / "a" / "b" / "c"));
  create_directories_durably(directory.path() / "a" / "b" / "c");
  test::write_file(directory.path() / "file", "");
  CHECK_THAT(error_message([&] { create_directories_durably(directory.path() / "file" / "d"); }),
             Contains("cannot make the folder") && Contains("/file: File exists"));
}

TEST_CASE("a durable file appears at commit", "[io][durable]") {
  const test::TempDir dir;
  const auto path = dir.path() / "file";
  {
    DurableFile file(path);
    file.write(bytes_of("one "));
    REQUIRE_FALSE(std::filesystem::exists(path));
    file.write(bytes_of("two"));
    file.commit();
  }
  REQUIRE(test::read_file(path) == "one two");
  {
    DurableFile abandoned(path);
    abandoned.write(bytes_of("three"));
  }
  REQUIRE(test::read_file(path) == "one two");
  REQUIRE(entries_of(dir.path()) == 1);
}

TEST_CASE("files and directories are renamed and synced", "[io][durable]") {
  const test::TempDir dir;
  std::filesystem::create_directory(dir.path() / "a");
  std::filesystem::create_directory(dir.path() / "b");
  test::write_file(dir.path() / "a" / "file", "x");
  sync_file(dir.path() / "a" / "file");
  sync_directory(dir.path() / "a");
  rename_durably(dir.path() / "a" / "file", dir.path() / "b" / "file");
  rename_durably(dir.path() / "b", dir.path() / "c");
  REQUIRE(test::read_file(dir.path() / "c" / "file") == "x");
}

TEST_CASE("errors of files name the path and the reason", "[io][durable]") {
  const test::TempDir dir;
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
  const test::TempDir dir;
  const auto pipe = dir.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  REQUIRE_THAT(error_message([&] { File::open(pipe); }), Contains("not a regular file"));
}

TEST_CASE("reads beyond the end are errors", "[io][durable]") {
  const test::TempDir dir;
  const auto path = dir.path() / "file";
  test::write_file(path, "0123456789");
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
}  // namespace sluice
