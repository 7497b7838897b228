#include "parallel/flight_recorder/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <csignal>
#include <sstream>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/process/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::flight_recorder_test {
namespace {

Signature all_reduce(std::uint64_t sequence, std::string_view label) {
  Signature signature{
      .sequence = sequence, .count = 1000, .kind = Collective::all_reduce, .dtype = DType::f32};
  signature.set_label(label);
  return signature;
}

RankRecord read(const TempDir& folder, int rank) {
  const auto record = read_record(record_path(folder.path(), rank));
  REQUIRE(record);
  return *record;
}

}  // namespace

TEST_CASE("a ring file tells what its rank did", "[flight_recorder]") {
  const TempDir folder;
  FlightRecorder ring(folder.path(), 2, 4);
  CHECK(ring.begin("world", all_reduce(7, "gradients 3")) == 0);
  CHECK(ring.begin("dp 0", all_reduce(0, "")) == 1);
  ring.end(0);
  ring.note("step 12");

  const RankRecord record = read(folder, 2);
  CHECK(record.rank == 2);
  CHECK(record.size == 4);
  CHECK(record.id.pid == ::getpid());
  CHECK_FALSE(record.id.host.empty());
  CHECK(record.process == ProcessState::running);
  CHECK(record.outcome == RankRecord::Outcome::none);
  CHECK_FALSE(record.lost());
  CHECK(record.note == "step 12");
  REQUIRE(record.operations.size() == 2);
  const RecordedOperation& first = record.operations[0];
  CHECK(first.number == 0);
  CHECK(first.communicator == "world");
  CHECK(first.signature == all_reduce(7, "gradients 3"));
  CHECK(first.begin >= record.started);
  CHECK(first.end >= first.begin);
  CHECK(record.operations[1].open());
  CHECK(record.operations[1].communicator == "dp 0");
}

TEST_CASE("a ring file keeps the last 256 operations", "[flight_recorder]") {
  const TempDir folder;
  FlightRecorder ring(folder.path(), 0, 1);
  for (std::uint64_t i = 0; i < 300; ++i)
    CHECK(ring.begin("world", all_reduce(i, "")) == i);
  ring.end(0);  // has made place for 256
  ring.end(299);
  ring.end(555);  // would have the place of 299

  const RankRecord record = read(folder, 0);
  REQUIRE(record.operations.size() == 256);
  for (std::size_t i = 0; i < 256; ++i) {
    CHECK(record.operations[i].number == 44 + i);
    CHECK(record.operations[i].signature.sequence == 44 + i);
    CHECK(record.operations[i].open() == (i < 255));
  }
}

TEST_CASE("a record takes no call that writes", "[flight_recorder]") {
  const auto writes = [] {
    std::istringstream counts(read_file("/proc/self/io"));
    std::string name;
    std::uint64_t value = 0;
    while (counts >> name >> value)
      if (name == "syscw:") return value;
    return std::uint64_t{0};
  };
  const TempDir folder;
  FlightRecorder ring(folder.path(), 0, 1);
  ring.note("step 1");
  const std::uint64_t before = writes();
  for (std::uint64_t i = 0; i < 1000; ++i)
    ring.end(ring.begin("world", all_reduce(i, "")));
  const std::uint64_t after = writes();
  write_file(folder.path() / "seen", "by the counter");
  CHECK(after == before);
  CHECK(writes() > after);
}

TEST_CASE("texts that are too long for a ring file are cut between characters",
          "[flight_recorder]") {
  const TempDir folder;
  FlightRecorder ring(folder.path(), 0, 1);
  ring.begin("tensor parallel group 3", all_reduce(0, ""));
  const std::string odd = "x" + [] {
    std::string text;
    for (int i = 0; i < 200; ++i)
      text += "\u00e4";  // two bytes
    return text;
  }();
  ring.note(odd);
  ring.set_gpu("GPU-5c9e1f0a-0000-1111-2222-333344445555");
  const RankRecord record = read(folder, 0);
  CHECK(record.operations.at(0).communicator == "tensor parallel ");
  CHECK(record.note.size() % 2 == 1);
  CHECK(record.note.size() > 100);
  CHECK(odd.starts_with(record.note));
  CHECK(record.gpu == "GPU-5c9e1f0a-0000-1111-2222-333344445555");
}

TEST_CASE("a ring file survives SIGKILL of its rank", "[flight_recorder]") {
  const TempDir folder;
  Child child([&] {
    FlightRecorder ring(folder.path(), 1, 2);
    ring.end(ring.begin("world", all_reduce(0, "first")));
    ring.begin("world", all_reduce(1, "second"));
    return ::raise(SIGKILL);
  });
  child.await_end_or_stop();
  // A zombie is as gone as a process that has been waited for.
  CHECK(read(folder, 1).process == ProcessState::gone);
  CHECK(child.reap() == -1);

  const RankRecord record = read(folder, 1);
  CHECK(record.process == ProcessState::gone);
  CHECK(record.lost());
  CHECK(record.id.pid == child.pid());
  REQUIRE(record.operations.size() == 2);
  CHECK_FALSE(record.operations[0].open());
  CHECK(record.operations[1].open());
  CHECK(record.operations[1].signature == all_reduce(1, "second"));
}

TEST_CASE("a ring file tells a rank that ended with words from one without", "[flight_recorder]") {
  const TempDir folder;
  Child([&] {
    FlightRecorder(folder.path(), 0, 3).finish();
    return 0;
  }).reap();
  Child([&] {
    FlightRecorder(folder.path(), 1, 3).fail("disk\nfull");
    return 0;
  }).reap();
  Child([&] {
    const FlightRecorder ring(folder.path(), 2, 3);
    return 0;
  }).reap();

  const auto records = read_records(folder.path());
  REQUIRE(records.size() == 3);
  for (const RankRecord& record : records)
    CHECK(record.process == ProcessState::gone);
  CHECK(records[0].outcome == RankRecord::Outcome::finished);
  CHECK_FALSE(records[0].lost());
  CHECK(records[0].ended >= records[0].started);
  CHECK(records[1].outcome == RankRecord::Outcome::failed);
  CHECK(records[1].message == "disk full");  // on one line
  CHECK_FALSE(records[1].lost());
  CHECK(records[2].outcome == RankRecord::Outcome::none);
  CHECK(records[2].lost());
}

TEST_CASE("a rank whose ring file somebody cuts goes on", "[flight_recorder][row18]") {
  for (const std::uintmax_t bytes : {0u, 100u, 5000u}) {
    const TempDir folder;
    Child child([&] {
      FlightRecorder ring(folder.path(), 0, 1);
      ring.begin("world", all_reduce(0, ""));
      std::filesystem::resize_file(ring.path(), bytes);
      for (std::uint64_t i = 1; i < 300; ++i)
        ring.end(ring.begin("world", all_reduce(i, "")));
      ring.note("step 9");
      return 7;
    });
    CHECK(child.reap() == 7);
    CHECK_FALSE(read_record(record_path(folder.path(), 0)));
  }
}

TEST_CASE("an access beyond another mapped file still ends the process", "[flight_recorder]") {
  const TempDir folder;
  Child child([&] {
    const FlightRecorder ring(folder.path(), 0, 1);
    const std::filesystem::path other = folder.path() / "other";
    const int file = ::open(other.c_str(), O_RDWR | O_CREAT, 0600);
    void* const mapped = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    *static_cast<volatile char*>(mapped) = 1;
    return 7;
  });
  CHECK(child.reap() != 7);  // by the signal, or as sanitizers end a program
}

TEST_CASE("a stopped rank is seen as stopped", "[flight_recorder]") {
  const TempDir folder;
  const Child child([&] {
    const FlightRecorder ring(folder.path(), 0, 1);
    return ::raise(SIGSTOP);
  });
  child.await_end_or_stop();
  CHECK(read(folder, 0).process == ProcessState::stopped);
}

TEST_CASE("a ring file that cannot be made is an error now", "[flight_recorder]") {
  const TempDir folder;
  const auto make = [&](const std::filesystem::path& at, int rank, int size) {
    return error_message([&] { FlightRecorder(at, rank, size); });
  };
  CHECK_THAT(make(folder.path() / "none", 0, 1),
             Contains("cannot create") && Contains("none/rank-0.ring") && Contains("No such file"));
  CHECK_THAT(make(folder.path(), 1, 1), Contains("one of the job's ranks"));
  CHECK_THAT(make(folder.path(), -1, 1), Contains("one of the job's ranks"));
  CHECK(read_records(folder.path()).empty());

  CHECK(make(folder.path(), 0, 1) == "(no error)");
  CHECK_THAT(make(folder.path(), 0, 1), Contains("is there already") && Contains("empty folder"));
  CHECK(read_records(folder.path()).size() == 1);  // the first one's is as it was
}

TEST_CASE("a full file system is an error when a ring file is made", "[flight_recorder]") {
  const TempDir folder;
  Child child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const std::string message = error_message([&] { FlightRecorder(folder.path(), 0, 1); });
    return message.starts_with("cannot reserve the ") ? 0 : 1;
  });
  CHECK(child.reap() == 0);
  CHECK(std::filesystem::is_empty(folder.path()));  // nothing half made is left
}

}  // namespace sluice::test::flight_recorder_test
