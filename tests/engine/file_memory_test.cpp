#include "engine/offload/file_memory.h"

#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/temp_dir.h"

// Memory in an unnamed file on a disk.

namespace sluice::test::file_memory_test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t page = ScratchFile::alignment;

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

/// Aligned memory.
struct Pages {
  explicit Pages(std::size_t count)
      : memory(static_cast<std::byte*>(std::aligned_alloc(page, count * page)), &std::free) {}
  std::byte* at(std::size_t index) const { return memory.get() + index * page; }

  std::unique_ptr<std::byte, void (*)(void*)> memory;
};

std::vector<std::byte> read_all(FileMemory& file, const FileMemory::Region& region) {
  std::vector<std::byte> bytes(region.bytes);
  file.read(region, 0, bytes);
  return bytes;
}

/// Returns the path of this process's descriptor of a file that was deleted from `folder`.
fs::path deleted_file(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (target.starts_with(fs::canonical(folder).string()) && target.ends_with("(deleted)"))
      return entry.path();
  }
  return {};
}

}  // namespace

TEST_CASE("memory in a file keeps what is written to any part of it", "[file_memory][threads]") {
  const TempDir folder;
  FileMemory file(folder.path(), 6 << 20);
  CHECK(fs::is_empty(folder.path()));
  file.allocate(100);  // so that the region begins elsewhere
  const FileMemory::Region region = file.allocate((5 << 20) + 77);
  CHECK(region.offset == page);
  CHECK(region.bytes % page == 0);
  CHECK(file.allocated() == region.offset + region.bytes);
  std::vector<std::byte> expected(region.bytes);
  CHECK((read_all(file, region) == expected));
  std::mt19937_64 random(1);
  for (int i = 0; i < 60; ++i) {
    const std::size_t size = random() % (i % 3 == 0 ? 3 << 20 : 2 * page);
    const std::size_t first = random() % (region.bytes - size);
    const std::vector<std::byte> bytes = random_bytes(size, random());
    file.write(region, first, bytes);
    std::ranges::copy(bytes, expected.begin() + static_cast<std::ptrdiff_t>(first));
    const std::size_t again = random() % (region.bytes - size);
    std::vector<std::byte> out(size);
    file.read(region, again, out);
    CHECK(std::memcmp(out.data(), expected.data() + again, size) == 0);
  }
  CHECK((read_all(file, region) == expected));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("transfers of a file write first, then read, after those that they wait for",
          "[file_memory][threads]") {
  const TempDir folder;
  constexpr std::size_t pages = 64, rounds = 40;
  FileMemory file(folder.path(), 3 * pages * page);
  const FileMemory::Region a = file.allocate(pages * page), b = file.allocate(pages * page);
  const Pages memory(pages);
  std::vector<std::byte> expected_a(a.bytes), expected_b(b.bytes);
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::vector<std::byte> bytes = random_bytes(a.bytes, round);
    // New bytes go to one region; the same memory then gets those of the other, and returns them.
    std::ranges::copy(bytes, memory.at(0));
    const bool even = round % 2 == 0;
    std::ranges::copy(bytes, (even ? expected_a : expected_b).begin());
    const auto first =
        file.start({{even ? a : b, memory.at(0)}}, {{even ? b : a, memory.at(0)}}, {});
    const auto second = file.start({{even ? b : a, memory.at(0)}}, {}, {first});
    second.get();
    CHECK(std::memcmp(memory.at(0), (even ? expected_b : expected_a).data(), a.bytes) == 0);
  }
  CHECK((read_all(file, a) == expected_a));
  CHECK((read_all(file, b) == expected_b));
}

TEST_CASE("an error of a transfer reaches those that wait for it", "[file_memory][threads]") {
  const TempDir folder;
  FileMemory file(folder.path(), 8 * page);
  const FileMemory::Region first = file.allocate(4 * page), second = file.allocate(4 * page);
  const fs::path descriptor = deleted_file(folder.path());
  REQUIRE(!descriptor.empty());
  REQUIRE(::truncate(descriptor.c_str(), 5 * page) == 0);
  const Pages memory(8);
  const auto good = file.start({}, {{first, memory.at(0)}}, {});
  const auto bad = file.start({}, {{second, memory.at(4)}}, {good});
  const auto after = file.start({{first, memory.at(0)}}, {}, {bad});
  CHECK_NOTHROW(good.get());
  for (const auto& transfer : {bad, after, bad}) {
    const std::string message = error_message([&] { transfer.get(); });
    CHECK_THAT(message, Contains(folder.path().string()) && Contains("ends at byte 20480") &&
                            Contains("truncated"));
  }
  CHECK_THAT(error_message([&] { read_all(file, second); }), Contains("truncated"));
}

TEST_CASE("a file is closed only once its transfers are complete", "[file_memory][threads]") {
  const TempDir folder;
  int complete = 0;
  {
    ScratchFile file(folder.path(), page);
    for (int i = 0; i < 3; ++i)
      file.start([&complete] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        ++complete;
      });
  }
  CHECK(complete == 3);
}

TEST_CASE("a folder that cannot hold the file is refused", "[file_memory]") {
  const TempDir folder;
  const auto refused = [](const fs::path& place, std::uint64_t bytes) {
    return error_message([&] { FileMemory(place, bytes); });
  };
  CHECK_THAT(refused(folder.path() / "absent", page),
             Contains("'" + (folder.path() / "absent").string() + "' is not a folder"));
  const std::string message = refused(folder.path(), std::uint64_t{1} << 60);
  CHECK_THAT(message,
             Contains("cannot take 1152921504606846976 bytes in " + folder.path().string()));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a folder in memory is told from one on a disk", "[file_memory]") {
  int checked = 0;
  for (const fs::path place : {"/dev/shm", "/tmp", "."}) {
    if (::access(place.c_str(), W_OK | X_OK) != 0) continue;
    const TempDir folder(place);
    struct statfs found {};
    REQUIRE(::statfs(folder.path().c_str(), &found) == 0);
    const bool in_memory = found.f_type == 0x01021994 || found.f_type == 0x858458f6;
    const std::string caution = FileMemory(folder.path(), page).caution();
    CHECK((caution.find(folder.path().string() + " is in memory") != std::string::npos) ==
          in_memory);
    ++checked;
  }
  CHECK(checked > 0);
  CHECK(FileMemory().caution() == "");
}

TEST_CASE("a plan's memory in a file only counts", "[file_memory]") {
  FileMemory file;
  const FileMemory::Region region = file.allocate(page + 1);
  CHECK(region.bytes == 2 * page);
  CHECK(file.allocated() == 2 * page);
  file.write(region, 3, random_bytes(10, 1));
  CHECK(read_all(file, region) == std::vector<std::byte>(2 * page));
  CHECK_NOTHROW(file.start({{region, nullptr}}, {{region, nullptr}}, {}).get());
  std::vector<std::byte> out(2 * page);
  CHECK_THROWS_AS(file.read(region, 1, out), Error);
}

TEST_CASE("more than was planned does not fit into a file", "[file_memory]") {
  const TempDir folder;
  FileMemory file(folder.path(), 2 * page);
  file.allocate(page);
  CHECK_THROWS_AS(file.allocate(page + 1), Error);
  CHECK(file.allocate(page).bytes == page);
}

}  // namespace sluice::test::file_memory_test
