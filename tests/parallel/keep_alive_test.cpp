#include "parallel/comm/keep_alive.h"

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "tests/parallel/ranks.h"
#include "tests/support/catch.h"

// Work of one rank for which the others wait longer than a collective's timeout.

namespace sluice::test::keep_alive_test {
namespace {

using namespace std::chrono_literals;

/// Records the sentences about slow work.
class Slow final : public Monitor {
 public:
  std::uint64_t begin(std::string_view, const Signature&) override { return 0; }
  void wait(std::uint64_t, double) override {}
  void end(std::uint64_t) override {}
  void slow(std::string_view sentence) override {
    const std::lock_guard lock(mutex_);
    sentences_.emplace_back(sentence);
  }
  std::vector<std::string> sentences() const {
    const std::lock_guard lock(mutex_);
    return sentences_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> sentences_;
};

/// Runs `body` on three ranks whose operations may take `timeout` seconds.
void on_three(double timeout, const std::shared_ptr<Slow>& monitor, const RankBody& body) {
  run_on_threads(3, [&](std::unique_ptr<Transport> transport) {
    Communicator ranks(std::move(transport), monitor, {.name = "test", .timeout = timeout});
    body(ranks);
  });
}

}  // namespace

TEST_CASE("work may take longer than the timeout, on any rank", "[threads]") {
  constexpr double timeout = 2;
  for (const int slow : {0, 2}) {
    CAPTURE(slow);
    const auto heard = std::make_shared<Slow>();
    std::array<std::atomic<bool>, 3> done{};
    std::atomic<int> early = 0;
    on_three(timeout, heard, [&](Communicator& ranks) {
      const auto work = [&] {
        if (ranks.rank() == slow) std::this_thread::sleep_for(5s);
        done[static_cast<std::size_t>(ranks.rank())] = true;
      };
      // Rank 1 only waits.
      ranks.rank() == 1 ? keep_alive(ranks, "checkpoint") : keep_alive(ranks, "checkpoint", work);
      if (!done[0] || !done[2]) ++early;
      ranks.barrier("and on")->wait();
    });
    CHECK(done[0]);
    CHECK(done[2]);
    CHECK(early == 0);
    const auto sentences = heard->sentences();
    REQUIRE(sentences.size() >= 3);  // of every rank
    for (const std::string& sentence : sentences)
      CHECK_THAT(sentence, Contains("for rank " + std::to_string(slow) + " at 'checkpoint'"));
  }
}

TEST_CASE("quick work takes one operation a call and says nothing", "[threads]") {
  const auto heard = std::make_shared<Slow>();
  std::atomic<int> runs = 0;
  on_three(60, heard, [&](Communicator& ranks) {
    for (int i = 0; i < 50; ++i)
      keep_alive(ranks, "checkpoint", [&] { ++runs; });
    // The next operation is the 51st.
    const Handle next = ranks.barrier("and on");
    expect(next->signature().sequence == 50, "operations besides one a call");
    next->wait();
  });
  CHECK(runs == 150);
  CHECK(heard->sentences().empty());
}

TEST_CASE("an error of the work is thrown at once, and no rank goes on without that rank",
          "[threads]") {
  const auto heard = std::make_shared<Slow>();
  std::atomic<int> went_on = 0;
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(on_three(600, heard,
                             [&](Communicator& ranks) {
                               keep_alive(ranks, "checkpoint", [&] {
                                 if (ranks.rank() == 1) fail("no such disk");
                               });
                               ++went_on;
                             }),
                    Contains("no such disk"));
  CHECK(went_on == 0);
  // It has waited for none of the pauses, which last 150 s.
  CHECK(std::chrono::steady_clock::now() - start < 100s);
}

TEST_CASE("a rank that does not join in is missed after the timeout", "[threads]") {
  const auto heard = std::make_shared<Slow>();
  std::atomic<int> went_on = 0;
  CHECK_THROWS_WITH(on_three(0.5, heard,
                             [&](Communicator& ranks) {
                               if (ranks.rank() == 2) return;
                               keep_alive(ranks, "checkpoint");
                               ++went_on;
                             }),
                    Contains("waited 0.5 s in all_gather") && Contains("'checkpoint'"));
  CHECK(went_on == 0);
}

TEST_CASE("a rank alone, and one of a plan, only work") {
  int runs = 0;
  for (const int size : {1, 4}) {
    const auto ranks = Communicator::planned(size, 0);
    keep_alive(*ranks, "checkpoint", [&] { ++runs; });
    keep_alive(*ranks, "checkpoint");
  }
  CHECK(runs == 2);
}

}  // namespace sluice::test::keep_alive_test
