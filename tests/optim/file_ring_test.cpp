#include "optim/offload/file_ring.h"

#include <cstring>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

// State that passes through memory on its way from a file and back.

namespace sluice::test::file_ring_test {
namespace {

constexpr std::size_t page = ScratchFile::alignment;

/// Items of one to three regions each, whose sizes differ.
struct Items {
  Items(const std::filesystem::path& folder, std::size_t count)
      : file(std::make_shared<FileMemory>(folder, count * 9 * page)) {
    for (std::size_t item = 0; item < count; ++item) {
      FileRing::Item& regions = all.emplace_back();
      for (std::size_t region = 0; region <= item % 3; ++region)
        regions.push_back(file->allocate((1 + (item + region) % 3) * page));
    }
  }

  std::uint64_t bytes() const { return file->allocated(); }
  /// Returns the byte that fills an item's region; -1 if they differ.
  int filling(const FileMemory::Region& region) const {
    std::vector<std::byte> out(region.bytes);
    file->read(region, 0, out);
    for (const std::byte byte : out)
      if (byte != out.front()) return -1;
    return static_cast<int>(out.front());
  }

  std::shared_ptr<FileMemory> file;
  std::vector<FileRing::Item> all;
};

/// Adds one to each byte of the item taken, and checks that all were equal to `expected`.
void update(FileRing& ring, const FileRing::Item& item, int expected) {
  const std::vector<std::byte*> parts = ring.take();
  REQUIRE(parts.size() == item.size());
  bool equal = true;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    CHECK(reinterpret_cast<std::uintptr_t>(parts[part]) % page == 0);
    for (std::size_t i = 0; i < item[part].bytes; ++i) {
      equal = equal && static_cast<int>(parts[part][i]) == expected;
      parts[part][i] = static_cast<std::byte>(expected + 1);
    }
  }
  CHECK(equal);
  ring.done();
}

}  // namespace

TEST_CASE("each round of a file ring finds what the last one has left", "[file_ring]") {
  for (const std::size_t count : {1u, 2u, 3u, 7u})
    for (const int buffers : {1, 2, 3, 8}) {
      CAPTURE(count, buffers);
      const TempDir folder;
      const Items items(folder.path(), count);
      FileRing ring(items.file, make_cpu_device(1 << 20), items.all, buffers);
      constexpr int rounds = 6;
      for (int round = 0; round < rounds; ++round) {
        ring.rewind();
        if (round % 2 == 0) ring.prefetch();
        for (const FileRing::Item& item : items.all)
          update(ring, item, round);
        CHECK(ring.moved().from_file == items.bytes());
        CHECK(ring.moved().to_file == items.bytes());
        CHECK_THROWS_AS(ring.take(), Error);
      }
      ring.synchronize();
      for (const FileRing::Item& item : items.all)
        for (const FileMemory::Region& region : item)
          CHECK(items.filling(region) == rounds);
    }
}

TEST_CASE("a file ring that forgets reads again what was written meanwhile", "[file_ring]") {
  const TempDir folder;
  const Items items(folder.path(), 5);
  FileRing ring(items.file, make_cpu_device(1 << 20), items.all, 2);
  ring.prefetch();
  ring.forget();
  ring.synchronize();
  for (const FileRing::Item& item : items.all)
    for (const FileMemory::Region& region : item)
      items.file->write(region, 0, std::vector<std::byte>(region.bytes, std::byte{40}));
  ring.prefetch();
  for (const FileRing::Item& item : items.all)
    update(ring, item, 40);
  CHECK(ring.moved().from_file == items.bytes());
  CHECK_NOTHROW(ring.synchronize());
}

TEST_CASE("a round of a file ring that was begun must be finished", "[file_ring]") {
  const TempDir folder;
  const Items items(folder.path(), 3);
  FileRing ring(items.file, make_cpu_device(1 << 20), items.all, 2);
  update(ring, items.all[0], 0);
  CHECK_THROWS_AS(ring.rewind(), Error);
  CHECK_THROWS_AS(ring.forget(), Error);
  update(ring, items.all[1], 0);
  update(ring, items.all[2], 0);
  CHECK_NOTHROW(ring.rewind());
}

}  // namespace sluice::test::file_ring_test
