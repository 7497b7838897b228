#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <span>
#include <string>

#include "engine/io/durable.h"
#include "engine/io/replaced_folder.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/process/child.h"
#include "tests/support/temp_dir.h"

// Folders that are replaced as a whole, with what somebody else keeps in them (rows 8 and 11 of
// what a run may touch). Kills are a matter of the fault suite.

namespace sluice::test::io_replaced_folder_test {
namespace {

bool ours(std::string_view name) {
  return name == "key" || name == "data" || name == "extra";
}

ReplacedFolder replacing(const fs::path& folder) {
  return {folder, "key", ours};
}

void put(const fs::path& file, const std::string& text) {
  write_file_durably(file, std::as_bytes(std::span(text)));
}

/// Replaces the folder's files by those with this text; what it was told.
std::vector<std::string> replace(const fs::path& folder, const std::string& text) {
  ReplacedFolder files(folder, "key", ours);
  put(files.path() / "data", text);
  put(files.path() / "key", text);
  return files.publish();
}

/// All below a folder, by path; of a folder "/", of a link where it leads.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    all[entry.path().lexically_relative(folder).string()] =
        entry.is_symlink()     ? "-> " + fs::read_symlink(entry.path()).string()
        : entry.is_directory() ? "/"
                               : read_file(entry.path());
  return all;
}

using Contents = std::map<std::string, std::string>;
const Contents foreign{{"README", "mine"},     {".git", "/"},       {".git/HEAD", "ref"},
                       {"link", "-> nowhere"}, {"data.bak", "old"}, {"data.tmp.12.old", "mine too"},
                       {"sub", "/"},           {"sub/key", "mine"}};

/// The user's own files in a folder of ours.
void add_foreign(const fs::path& folder) {
  for (const auto& [name, text] : foreign)
    if (text == "/")
      fs::create_directories(folder / name);
    else if (text.starts_with("-> "))
      fs::create_symlink(text.substr(3), folder / name);
    else
      write_file(folder / name, text);
}

Contents with_foreign(Contents files) {
  files.insert(foreign.begin(), foreign.end());
  return files;
}

/// A temporary's name of a process that has ended.
fs::path name_of_the_dead(const fs::path& path) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Child child([&] {
    const std::string name = temporary_name(path).string();
    return ::write(ends[1], name.data(), name.size()) == static_cast<ssize_t>(name.size()) ? 0 : 1;
  });
  REQUIRE(child.reap() == 0);
  std::string name(4096, '\0');
  const ssize_t got = ::read(ends[0], name.data(), name.size());
  ::close(ends[0]);
  ::close(ends[1]);
  REQUIRE(got > 0);
  return name.substr(0, static_cast<std::size_t>(got));
}

}  // namespace

TEST_CASE("a folder is replaced with its old files, and all others stay", "[io][files]") {
  const TempDir dir;
  const fs::path folder = dir.path() / "model";
  CHECK(replace(folder, "one").empty());
  CHECK(contents(folder) == Contents{{"key", "one"}, {"data", "one"}});
  write_file(folder / "extra", "of the old ones");
  add_foreign(folder);
  CHECK(replace(folder, "two").empty());
  CHECK(contents(folder) == with_foreign({{"key", "two"}, {"data", "two"}}));

  SECTION("and nothing is beside it") {
    CHECK(contents(dir.path()).size() == 1 + contents(folder).size());
  }
  SECTION("without publish() it is as it was") {
    {
      ReplacedFolder abandoned = replacing(folder);
      put(abandoned.path() / "data", "three");
    }
    CHECK(contents(folder) == with_foreign({{"key", "two"}, {"data", "two"}}));
    CHECK(contents(dir.path()).size() == 1 + contents(folder).size());
  }
  SECTION("a link stands for the folder behind it") {
    fs::create_directory_symlink("model", dir.path() / "link");
    CHECK(replace(dir.path() / "link", "three").empty());
    CHECK(fs::is_symlink(dir.path() / "link"));
    CHECK(contents(folder) == with_foreign({{"key", "three"}, {"data", "three"}}));
  }
  SECTION("its rights stay") {
    REQUIRE(::chmod(folder.c_str(), 02750) == 0);
    replace(folder, "three");
    struct stat status {};
    REQUIRE(::stat(folder.c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 02750);
  }
  SECTION("a slash at the end changes nothing") {
    CHECK(replace(folder.string() + "/", "three").empty());
    CHECK(contents(folder) == with_foreign({{"key", "three"}, {"data", "three"}}));
  }
}

TEST_CASE("the current folder is replaced file by file, and stays the current one", "[io][files]") {
  const TempDir dir;
  const fs::path folder = dir.path() / "model", before = fs::current_path();
  replace(folder, "one");
  add_foreign(folder);
  fs::current_path(folder);
  const auto told = replace(".", "two");
  const bool same = fs::equivalent(".", folder);
  // A failed write leaves everything unchanged.
  fs::create_directory("extra");
  std::string message;
  {
    ReplacedFolder files(".", "key", ours);
    put(files.path() / "key", "three");
    put(files.path() / "extra", "three");
    message = error_message([&] { files.publish(); });
  }
  fs::remove("extra");
  fs::current_path(before);
  CHECK(told.empty());
  CHECK(same);
  CHECK_THAT(message, Contains("cannot rename") && Contains("extra"));
  CHECK(contents(folder) == with_foreign({{"key", "two"}, {"data", "two"}}));
}

TEST_CASE("what a writer that is gone has left is moved before anything is removed",
          "[io][files]") {
  const TempDir dir;
  const fs::path folder = dir.path() / "model";
  replace(folder, "one");
  // It was killed after the folders had changed places.
  const fs::path left = name_of_the_dead(folder);
  fs::create_directory(left);
  write_file(left / "key", "zero");
  write_file(left / "data", "zero");
  write_file(name_of_the_dead(left / "data"), "half");
  add_foreign(left);
  SECTION("all of it") {
    CHECK(replace(folder, "two").empty());
    CHECK(contents(folder) == with_foreign({{"key", "two"}, {"data", "two"}}));
    CHECK_FALSE(fs::exists(left));
  }
  SECTION("what has a namesake stays, and is told") {
    write_file(folder / "README", "a newer one");
    const auto told = replace(folder, "two");
    REQUIRE(told.size() == 1);
    CHECK_THAT(told[0], Contains("README") && Contains(left.string()));
    CHECK(contents(left) == Contents{{"README", "mine"}});
    CHECK(read_file(folder / "README") == "a newer one");
  }
  SECTION("of a writer that may be at work nothing is touched") {
    const fs::path other = folder.string() + ".tmp.1.0.00000000";
    fs::rename(left, other);
    const Contents was = contents(other);
    CHECK(replace(folder, "two").empty());
    CHECK(contents(other) == was);
    CHECK(contents(folder) == Contents{{"key", "two"}, {"data", "two"}});
  }
}

TEST_CASE("a folder of ours that stands where a file of ours goes is not lost", "[io][files]") {
  const TempDir dir;
  const fs::path folder = dir.path() / "model";
  fs::create_directories(folder / "key");
  write_file(folder / "key" / "thesis", "mine");
  const auto told = replace(folder, "one");
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], Contains("key"));
  CHECK(read_file(folder / "key") == "one");
  CHECK(contents(dir.path()).size() == 6);  // three of the new, and the old with two
}

TEST_CASE("writers at the same time leave the files of one of them", "[io][files]") {
  const TempDir dir;
  const fs::path folder = dir.path() / "model";
  replace(folder, "zero");
  add_foreign(folder);
  constexpr int rounds = 50;
  const auto write_many = [&](const std::string& text) {
    return [&folder, text] {
      for (int round = 0; round < rounds; ++round)
        if (!replace(folder, text).empty()) return 1;
      return 0;
    };
  };
  Child one(write_many("one")), two(write_many("two"));
  for (int look = 0; look < 500; ++look)
    REQUIRE(fs::exists(folder / "key"));  // at any moment there is a whole one
  CHECK(one.reap() == 0);
  CHECK(two.reap() == 0);
  const std::string last = read_file(folder / "key");
  CHECK((last == "one" || last == "two"));
  CHECK(contents(folder) == with_foreign({{"key", last}, {"data", last}}));
  CHECK(contents(dir.path()).size() == 1 + contents(folder).size());
}

TEST_CASE("a file or a link to nowhere is no folder to be replaced", "[io][files]") {
  const TempDir dir;
  write_file(dir.path() / "file", "mine");
  fs::create_symlink("nowhere", dir.path() / "link");
  for (const char* const name : {"file", "link"})
    CHECK_THAT(error_message([&] { replace(dir.path() / name, "x"); }),
               Contains("cannot make the folder") && Contains(name));
  CHECK(contents(dir.path()) == Contents{{"file", "mine"}, {"link", "-> nowhere"}});
}

}  // namespace sluice::test::io_replaced_folder_test
