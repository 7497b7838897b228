#include <set>
#include <span>
#include <string>

#include "engine/io/durable.h"
#include "engine/io/replaced_folder.h"
#include "tests/support/catch.h"
#include "tests/support/sync_watch.h"
#include "tests/support/temp_dir.h"

// What is synced after a rename: without that a power failure may undo it.

namespace sluice::test::io_sync_test {
namespace {

void put(const fs::path& file, const std::string& text) {
  write_file_durably(file, std::as_bytes(std::span(text)));
}

}  // namespace

TEST_CASE("a rename is made durable in the folder it leaves and in the one it enters", "[io]") {
  const TempDir dir;
  const fs::path from = dir.path() / "from", to = dir.path() / "to";
  for (const auto& folder : {from, to})
    fs::create_directory(folder);
  put(from / "file", "text");
  std::set<fs::path> synced;
  {
    const SyncWatch watch([&](const fs::path& path) {
      if (fs::exists(to / "file")) synced.insert(path);
    });
    rename_durably(from / "file", to / "file");
  }
  // A name that is durable in neither folder would be lost with the file.
  CHECK(synced == std::set{from, to});
}

TEST_CASE("a folder has its new name for good before the files of the old one go", "[io][files]") {
  const TempDir dir;
  const fs::path folder = dir.path() / "model";
  const auto replace = [&](const std::string& name) {
    ReplacedFolder files(folder, "key", [](std::string_view) { return true; });
    put(files.path() / name, name);
    files.publish();
  };
  replace("old");
  // The old files are then in a temporary folder beside the new one.
  const auto old_is_there = [&] {
    for (const auto& entry : fs::directory_iterator(dir.path()))
      if (entry.path() != folder && fs::exists(entry.path() / "old")) return true;
    return false;
  };
  bool durable = false;
  {
    const SyncWatch watch([&](const fs::path& path) {
      durable = durable || (path == dir.path() && fs::exists(folder / "new") && old_is_there());
    });
    replace("new");
  }
  CHECK(durable);
  CHECK_FALSE(old_is_there());
}

}  // namespace sluice::test::io_sync_test
