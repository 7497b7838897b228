#include <atomic>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/record_layout.h"
#include "tests/support/catch.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::record_reader_test {
namespace {

Signature barrier(std::uint64_t sequence) {
  return {.sequence = sequence, .kind = Collective::barrier};
}

/// The bytes of a good file with operations 0, 1 and 2, and what a changed copy of them reads as.
class Bytes {
 public:
  Bytes() {
    FlightRecorder ring(folder_.path(), 0, 2);
    for (std::uint64_t i = 0; i < 3; ++i)
      ring.begin("world", barrier(i));
    ring.note("a note");
    const std::string bytes = read_file(ring.path());
    REQUIRE(bytes.size() == sizeof(RecordLayout));
    std::memcpy(static_cast<void*>(&layout), bytes.data(), sizeof layout);
  }

  std::optional<RankRecord> read(std::string_view bytes) const {
    const auto path = folder_.path() / "changed";
    write_file(path, bytes);
    return read_record(path);
  }
  std::optional<RankRecord> read() const { return read(text()); }
  std::string text() const {
    return std::string(reinterpret_cast<const char*>(&layout), sizeof layout);
  }

  RecordLayout layout;

 private:
  TempDir folder_;
};

std::size_t operations(const std::optional<RankRecord>& record) {
  REQUIRE(record);
  return record->operations.size();
}

}  // namespace

TEST_CASE("what is not a whole ring file is no record", "[record_reader]") {
  const Bytes good;
  REQUIRE(operations(good.read()) == 3);
  const std::string text = good.text();
  CHECK_FALSE(good.read(""));
  CHECK_FALSE(good.read(text.substr(0, text.size() - 1)));
  CHECK_FALSE(good.read(text.substr(0, 100)));
  CHECK_FALSE(good.read(text + " "));
  CHECK_FALSE(good.read(std::string(text.size(), '\0')));
  CHECK_FALSE(good.read(std::string(text.size(), '\xff')));
  CHECK_FALSE(read_record("/none/rank-0.ring"));
  CHECK_FALSE(read_record("/dev/zero"));
  CHECK(read_records("/none").empty());
}

TEST_CASE("a header with impossible values is no record", "[record_reader]") {
  Bytes bytes;
  RecordHeader& header = bytes.layout.header;
  SECTION("magic") {
    header.magic ^= 1;
  }
  SECTION("version") {
    header.version += 1;
  }
  SECTION("slots") {
    header.slots = 255;
  }
  SECTION("rank below zero") {
    header.rank = -1;
  }
  SECTION("rank beyond the last") {
    header.rank = 2;
  }
  SECTION("no ranks") {
    header.size = 0;
  }
  SECTION("too many ranks") {
    header.size = 1 << 30;
  }
  SECTION("no process") {
    header.pid = 0;
  }
  SECTION("a group of processes") {
    header.pid = -1;
  }
  SECTION("outcome") {
    bytes.layout.status.outcome = 3;
  }
  CHECK_FALSE(bytes.read());
}

TEST_CASE("an operation with impossible values is left out", "[record_reader]") {
  Bytes bytes;
  RecordSlot& slot = bytes.layout.slots[1];
  SECTION("never written") {
    slot.version = 0;
  }
  SECTION("its process was killed while it wrote") {
    slot.version = 3;
  }
  SECTION("place") {
    slot.number = 2;
  }
  SECTION("kind") {
    std::memset(&slot.signature.kind, 10, 1);
  }
  SECTION("type") {
    std::memset(&slot.signature.dtype, static_cast<int>(std::size(dtype_facts)), 1);
  }
  SECTION("a bool that is none") {
    std::memset(&slot.signature.any_order, 32, 1);
  }
  SECTION("never begun") {
    slot.begin = 0;
  }
  SECTION("ended before it began") {
    slot.end = slot.begin - 1;
  }
  const auto record = bytes.read();
  REQUIRE(operations(record) == 2);
  CHECK(record->operations[0].number == 0);
  CHECK(record->operations[1].number == 2);
}

TEST_CASE("a rank killed while it wrote its note still has a record", "[record_reader]") {
  Bytes bytes;
  ++bytes.layout.status.version;
  const auto record = bytes.read();
  CHECK(operations(record) == 3);
  CHECK(record->note == "a note");
}

TEST_CASE("a process number means nothing after its process or elsewhere", "[record_reader]") {
  Bytes bytes;
  auto& header = bytes.layout.header;
  auto expected = ProcessState::running;
  SECTION("the same") {}
  SECTION("another process has its number now") {
    ++header.process_started;
    expected = ProcessState::gone;
  }
  SECTION("another host") {
    header.host[0] ^= 1;
    expected = ProcessState::unknown;
  }
  SECTION("another container") {
    ++header.pid_namespace;
    expected = ProcessState::unknown;
  }
  const auto record = bytes.read();
  REQUIRE(record);
  CHECK(record->process == expected);
}

TEST_CASE("no bytes of a ring file upset its reader", "[record_reader]") {
  const Bytes good;
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string text = good.text();
    for (int change = 0; change < 8; ++change) {
      // Most often in the part that has meaning.
      const std::size_t range = change % 2 == 0 ? offsetof(RecordLayout, slots) + 400 : text.size();
      text[random() % range] = static_cast<char>(random());
    }
    const auto record = good.read(text);
    if (!record) continue;
    CHECK(record->rank < record->size);
    for (const auto& operation : record->operations)
      CHECK_FALSE(to_string(operation.signature).empty());
    CHECK(record->note.find('\n') == std::string::npos);
  }
}

TEST_CASE("a folder's ring files come by rank, and only under their names", "[record_reader]") {
  const TempDir folder;
  for (const int rank : {10, 2, 0})
    FlightRecorder(folder.path(), rank, 11).note(std::to_string(rank));
  write_file(folder.path() / "copy.ring", read_file(record_path(folder.path(), 2)));
  write_file(record_path(folder.path(), 5), "garbage");
  write_file(folder.path() / "spoken", "");
  const auto records = read_records(folder.path());
  REQUIRE(records.size() == 3);
  CHECK(records[0].note == "0");
  CHECK(records[1].note == "2");
  CHECK(records[2].note == "10");
}

TEST_CASE("a ring file may be read while threads write to it", "[record_reader][threads]") {
  const TempDir folder;
  FlightRecorder ring(folder.path(), 0, 1);
  const auto text_of = [](std::uint64_t i) {
    return std::string(i % 40, "abcdefghijklmnopqrstuvwxyz"[i % 26]);
  };
  std::atomic<bool> stop = false;
  const auto write = [&] {
    for (std::uint64_t i = 0; !stop; ++i) {
      Signature signature{.sequence = i,
                          .count = static_cast<std::int64_t>(i),
                          .root = static_cast<std::int32_t>(i % 1000),
                          .kind = Collective::broadcast};
      signature.set_label(text_of(i));
      const auto number = ring.begin(text_of(i), signature);
      ring.note(text_of(i));
      ring.end(number);
      // A file that never rests tells nothing.
      if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  };
  std::thread first(write), second(write);
  std::size_t seen = 0;
  bool whole = true;
  const bool enough = eventually([&] {
    for (int reads = 0; reads < 100; ++reads) {
      const auto record = read_record(ring.path());
      if (!record) return whole = false;
      for (const auto& o : record->operations) {
        const auto i = o.signature.sequence;
        Signature expected{.sequence = i,
                           .count = static_cast<std::int64_t>(i),
                           .root = static_cast<std::int32_t>(i % 1000),
                           .kind = Collective::broadcast};
        expected.set_label(text_of(i));
        whole = whole && o.signature == expected && o.communicator == text_of(i).substr(0, 16);
        ++seen;
      }
      // One text all through.
      whole = whole && record->note.find_first_not_of(record->note[0]) == std::string::npos;
    }
    return seen > 10000;
  });
  stop = true;
  first.join();
  second.join();
  CHECK(whole);
  CHECK(enough);
}

}  // namespace sluice::test::record_reader_test
