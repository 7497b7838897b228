#include "parallel/flight_recorder/shared_post_mortem.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/support/catch.h"
#include "tests/support/process/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::shared_post_mortem_test {
namespace {

using namespace std::chrono_literals;

constexpr const char* missing = "rank 1 of 2 never got as far as its first record";

/// The records of a job in which one of two ranks is missing.
struct Job : TempDir {
  FlightRecorder rank{path(), 0, 2};

  std::filesystem::path file() const { return path() / post_mortem_name; }
};

}  // namespace

TEST_CASE("the first that asks for a post mortem makes it for all", "[shared_post_mortem]") {
  const Job job;
  CHECK(shared_post_mortem(job.path(), 2) == missing);
  CHECK(read_file(job.file()) == std::string(missing) + "\n");
  // Nobody else reads the records.
  std::filesystem::remove(record_path(job.path(), 0));
  CHECK(shared_post_mortem(job.path(), 2) == missing);
}

TEST_CASE("ranks that ask for a post mortem together get one", "[shared_post_mortem]") {
  for (int round = 0; round < 20; ++round) {
    const Job job;
    Gate gate;
    std::vector<std::unique_ptr<Child>> ranks;
    for (int rank = 0; rank < 6; ++rank)
      ranks.push_back(std::make_unique<Child>([&] {
        gate.wait();
        return shared_post_mortem(job.path(), 2, 60s) == missing ? 1 : 0;
      }));
    gate.open();
    for (const auto& rank : ranks)
      CHECK(rank->reap() == 1);
  }
}

TEST_CASE("who waits in vain for a post mortem makes one", "[shared_post_mortem]") {
  const Job job;
  // The first has died, or is at a part of its sentence.
  for (const char* text : {"", "rank 1 of"}) {
    write_file(job.file(), text);
    CHECK(shared_post_mortem(job.path(), 2, 30ms) == missing);
    CHECK(read_file(job.file()) == text);
  }
  std::thread first([&] {
    std::this_thread::sleep_for(30ms);
    write_file(job.file(), "a sentence\n");
  });
  CHECK(shared_post_mortem(job.path(), 2, 60s) == "a sentence");
  first.join();
  CHECK(shared_post_mortem(job.path() / "gone", 2, 60s) ==
        "no rank has left a record of what it did");
}

}  // namespace sluice::test::shared_post_mortem_test
