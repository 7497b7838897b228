#include "engine/io/file_identity.h"

#include <chrono>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::io_file_identity_test {

TEST_CASE("a file is itself by every name and no other file") {
  const TempDir dir;
  for (const char* name : {"a", "b"})
    write_file(dir.path() / name, "equal");
  fs::create_directory(dir.path() / "folder");
  fs::create_symlink(dir.path() / "a", dir.path() / "link");
  const FileIdentity a = identity_of(dir.path() / "a");
  CHECK(a.number > 0);
  CHECK(a == identity_of(dir.path() / "folder" / ".." / "a"));
  CHECK(a == identity_of(dir.path() / "link"));
  CHECK_FALSE(a == identity_of(dir.path() / "b"));
  CHECK_FALSE(a == identity_of(dir.path() / "folder"));
}

TEST_CASE("what is not there has no identity") {
  const TempDir dir;
  CHECK(identity_of(dir.path() / "absent").number == 0);
}

TEST_CASE("a file that was changed since is not taken for what it was") {
  const TempDir dir;
  write_file(dir.path() / "a", "one");
  const FileIdentity before = identity_of(dir.path() / "a");
  FileIdentity after = before;
  // The clock of a file system may tick slowly.
  for (int attempt = 0; attempt < 2000 && after == before; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    fs::permissions(dir.path() / "a", fs::perms::owner_read);
    after = identity_of(dir.path() / "a");
  }
  CHECK(after.number == before.number);
  CHECK(after.disk == before.disk);
  CHECK_FALSE(after == before);
}

}  // namespace sluice::test::io_file_identity_test
