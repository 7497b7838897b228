#include "parallel/flight_recorder/watchdog.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "parallel/flight_recorder/flight_recorder.h"
#include "tests/support/catch.h"
#include "tests/support/process/child.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::watchdog_test {
namespace {

using namespace std::chrono_literals;
using Clock = Watchdog::Clock;

const Watchdog::Options quick{.period = 5ms, .grace = 20ms, .lost_for = 20ms};

/// Records the calls of a watchdog.
class Heard {
 public:
  Watchdog::OnFailure listener() {
    return [this](const std::string& sentence, bool) {
      const std::lock_guard lock(mutex_);
      sentence_ = sentence;
      ++calls_;
    };
  }
  int calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::string sentence() const {
    const std::lock_guard lock(mutex_);
    return sentence_;
  }
  bool wait() const {
    return eventually([&] { return calls() > 0; });
  }

 private:
  mutable std::mutex mutex_;
  std::string sentence_;
  int calls_ = 0;
};

Signature barrier(std::uint64_t sequence) {
  Signature signature{.sequence = sequence, .kind = Collective::barrier};
  signature.set_label("step end");
  return signature;
}

/// Long enough for a wrong watchdog to speak up.
void many_periods() {
  std::this_thread::sleep_for(40 * quick.period);
}

}  // namespace

TEST_CASE("a watchdog reports an operation that is past its deadline, once",
          "[watchdog][threads]") {
  const TempDir folder;
  FlightRecorder ring(folder.path(), 0, 2);
  FlightRecorder other(folder.path(), 1, 2);
  other.note("step 3");
  Heard heard;
  Watchdog watchdog(folder.path(), 0, 2, heard.listener(), quick);
  watchdog.begin(ring.begin("world", barrier(0)), Clock::now());
  REQUIRE(heard.wait());
  CHECK_THAT(heard.sentence(), Contains("rank 1") &&
                                   Contains("has not started barrier 'step end'") &&
                                   Contains("at \"step 3\"") && Contains("rank 0 gave up after"));
  many_periods();
  CHECK(heard.calls() == 1);
}

TEST_CASE("a watchdog leaves operations alone that ended or have time", "[watchdog][threads]") {
  const TempDir folder;
  FlightRecorder ring(folder.path(), 0, 1);
  Heard heard;
  Watchdog watchdog(folder.path(), 0, 1, heard.listener(), quick);
  const auto ended = ring.begin("world", barrier(0));
  watchdog.begin(ended, Clock::now() + 10s);
  watchdog.end(ended);
  watchdog.begin(ring.begin("world", barrier(1)), Clock::now() + 1h);
  many_periods();
  CHECK(heard.calls() == 0);
}

TEST_CASE("a watchdog gives the thread that waits time to report itself", "[watchdog][threads]") {
  const TempDir folder;
  Heard heard;
  Watchdog watchdog(folder.path(), 0, 1, heard.listener(),
                    {.period = 5ms, .grace = 1h, .lost_for = 20ms});
  watchdog.begin(0, Clock::now() - 1min);
  many_periods();
  CHECK(heard.calls() == 0);
}

TEST_CASE("a watchdog looks at the ranks of its computer alone", "[watchdog][threads]") {
  const TempDir folder;
  const Child child([&] {
    FlightRecorder(folder.path(), 1, 2).begin("world", barrier(0));
    return 3;
  });
  child.await_end_or_stop();
  FlightRecorder ring(folder.path(), 0, 2);
  for (const auto& [here, seen] : {std::pair(std::vector{0}, false), {std::vector{0, 1}, true}}) {
    CAPTURE(seen);
    auto options = quick;
    options.here = here;
    Heard heard;
    Watchdog watchdog(folder.path(), 0, 2, heard.listener(), options);
    watchdog.begin(0, Clock::now() + 1h);
    if (seen) REQUIRE(heard.wait());
    many_periods();
    CHECK(heard.calls() == (seen ? 1 : 0));
  }
}

TEST_CASE("a watchdog reports a rank that is gone while this one waits", "[watchdog][threads]") {
  const TempDir folder;
  Gate gate;
  const Child child([&] {
    FlightRecorder ring(folder.path(), 1, 2);
    ring.begin("world", barrier(0));
    gate.wait();
    return 3;
  });
  FlightRecorder ring(folder.path(), 0, 2);
  Heard heard;
  Watchdog watchdog(folder.path(), 0, 2, heard.listener(), quick);
  REQUIRE(eventually([&] { return read_records(folder.path()).size() == 2; }));
  REQUIRE(
      eventually([&] { return !read_record(record_path(folder.path(), 1))->operations.empty(); }));
  const auto number = ring.begin("world", barrier(0));

  SECTION("and only then") {
    gate.open();
    child.await_end_or_stop();
    many_periods();
    CHECK(heard.calls() == 0);
    watchdog.begin(number, Clock::now() + 1h);
  }
  SECTION("that was alive before") {
    watchdog.begin(number, Clock::now() + 1h);
    many_periods();
    CHECK(heard.calls() == 0);
    gate.open();
  }
  REQUIRE(heard.wait());
  CHECK(heard.sentence() ==
        "rank 1 (pid " + std::to_string(child.pid()) +
            ") was killed or exited without a word in barrier 'step end' (operation 0 of world); "
            "rank 0 waits for it");
}

TEST_CASE("a watchdog lets ranks go that ended with words", "[watchdog][threads]") {
  const TempDir folder;
  const Child finished([&] {
    FlightRecorder(folder.path(), 1, 3).finish();
    return 0;
  });
  const Child failed([&] {
    FlightRecorder(folder.path(), 2, 3).fail("out of memory");
    return 0;
  });
  finished.await_end_or_stop();
  failed.await_end_or_stop();
  FlightRecorder ring(folder.path(), 0, 3);
  Heard heard;
  Watchdog watchdog(folder.path(), 0, 3, heard.listener(), quick);
  watchdog.begin(ring.begin("world", barrier(0)), Clock::now() + 1h);
  many_periods();
  CHECK(heard.calls() == 0);
}

TEST_CASE("a watchdog waits for a rank that is only slow to tell of its end",
          "[watchdog][threads]") {
  const TempDir folder;
  const Child child([&] {
    const FlightRecorder ring(folder.path(), 1, 2);
    return 0;
  });
  child.await_end_or_stop();
  Heard heard;
  Watchdog watchdog(folder.path(), 0, 2, heard.listener(),
                    {.period = 5ms, .grace = 20ms, .lost_for = 1h});
  watchdog.begin(0, Clock::now() + 1h);
  many_periods();
  CHECK(heard.calls() == 0);
}

TEST_CASE("a watchdog whose process is asked to end while all goes well asks nobody",
          "[watchdog][threads]") {
  const TempDir folder;
  FlightRecorder ring(folder.path(), 0, 2);
  Heard failure;
  std::atomic<int> looked = 0, read = 0;
  Watchdog::Options options = quick;
  options.here = {0};
  options.records_at_end = [&] {
    ++read;
    return std::vector<RankRecord>();
  };
  options.ending = [&] {
    ++looked;
    return true;
  };
  ring.end(ring.begin("world", barrier(3)));
  const Watchdog watchdog(folder.path(), 0, 2, failure.listener(), options);
  REQUIRE(eventually([&] { return looked > 0; }));
  many_periods();
  CHECK(read == 0);
  CHECK(looked == 1);
}

TEST_CASE("a watchdog ends promptly", "[watchdog][threads]") {
  const TempDir folder;
  Heard heard;
  const auto begin = Clock::now();
  {
    Watchdog watchdog(folder.path(), 0, 1, heard.listener(),
                      {.period = 2min, .grace = 20ms, .lost_for = 20ms});
    watchdog.begin(0, Clock::now() - 1s);
    many_periods();  // by now its thread sleeps
  }
  CHECK(Clock::now() - begin < 1min);
  CHECK(heard.calls() == 0);
}

TEST_CASE("threads may begin and end waits at the same time", "[watchdog][threads]") {
  const TempDir folder;
  Heard heard;
  {
    Watchdog watchdog(folder.path(), 0, 1, heard.listener(),
                      {.period = 1ms, .grace = 20ms, .lost_for = 20ms});
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 0; thread < 4; ++thread)
      threads.emplace_back([&, thread] {
        for (std::uint64_t i = 0; i < 500; ++i) {
          watchdog.begin(4 * i + thread, Clock::now() + 1h);
          watchdog.end(4 * i + thread);
        }
      });
    threads.clear();
    // None is left open: one that were would keep the look at other ranks going, no more.
    many_periods();
  }
  CHECK(heard.calls() == 0);
}

TEST_CASE("a watchdog whose process is asked to end names who does not answer",
          "[watchdog][threads]") {
  const TempDir folder;
  FlightRecorder ring(folder.path(), 0, 2);
  std::atomic<bool> asked = false;
  std::atomic<int> read = 0;
  RankRecord other;
  other.rank = 1;
  other.size = 2;
  other.id.host = "node2";
  SECTION("as its computer is cut off") {
    other.silent = true;
  }
  SECTION("but nobody if all answer") {}
  Heard failure, elsewhere;
  Watchdog::Options options = quick;
  options.here = {0};
  options.records_at_end = [&] {
    ++read;
    std::vector<RankRecord> records = read_records(folder.path());
    records.push_back(other);
    return records;
  };
  options.ending = [&] { return asked.load(); };
  options.on_lost_elsewhere = [hear = elsewhere.listener()](const std::string& sentence) {
    hear(sentence, false);
  };
  Watchdog watchdog(folder.path(), 0, 2, failure.listener(), options);
  watchdog.begin(ring.begin("world", barrier(3)), Clock::now() + 1h);
  std::this_thread::sleep_for(350ms);  // longer than operations usually last
  CHECK(read == 0);
  asked = true;
  REQUIRE(eventually([&] { return read > 0; }));
  many_periods();
  CHECK(read == 1);
  CHECK(failure.calls() == 0);
  CHECK(elsewhere.calls() == (other.silent ? 1 : 0));
  if (other.silent)
    CHECK_THAT(elsewhere.sentence(), Contains("rank 1 on node2 does not answer") &&
                                         Contains("rank 0 waits for it in barrier 'step end'"));
}

}  // namespace sluice::test::watchdog_test
