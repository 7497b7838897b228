// What ranks of several computers, here folders, tell each other of their records.
#include "parallel/flight_recorder/record_exchange.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "parallel/flight_recorder/post_mortem.h"
#include "tests/support/catch.h"
#include "tests/support/process/child.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::record_exchange_test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

/// The letters under way between the threads of a test.
struct Post {
  std::mutex mutex;
  std::map<int, std::deque<Mailbox::Letter>> to;
};

class PostBox final : public Mailbox {
 public:
  PostBox(std::shared_ptr<Post> post, int rank) : post_(std::move(post)), rank_(rank) {}
  void send(int to, std::string_view text) override {
    const std::lock_guard lock(post_->mutex);
    post_->to[to].push_back({.from = rank_, .text = std::string(text)});
  }
  std::optional<Letter> fetch() override {
    const std::lock_guard lock(post_->mutex);
    auto& mine = post_->to[rank_];
    if (mine.empty()) return std::nullopt;
    Letter letter = mine.front();
    mine.pop_front();
    return letter;
  }

 private:
  std::shared_ptr<Post> post_;
  int rank_;
};

/// Ranks 0 and 1 on node1, ranks 2 and 3 on node2, each with a folder of its computer's.
struct TwoHosts {
  TempDir node1, node2;
  std::shared_ptr<Post> post = std::make_shared<Post>();
  std::vector<RankPlace> places{{0, "node1"}, {0, "node1"}, {2, "node2"}, {2, "node2"}};

  fs::path folder(int rank) const { return rank < 2 ? node1.path() : node2.path(); }
  std::unique_ptr<RecordExchange> exchange(int rank, bool with_post = true) const {
    return std::make_unique<RecordExchange>(
        with_post ? std::make_unique<PostBox>(post, rank) : nullptr, folder(rank), rank, places);
  }
};

Signature all_reduce(std::uint64_t sequence) {
  Signature signature{
      .sequence = sequence, .count = 10, .kind = Collective::all_reduce, .dtype = DType::f32};
  signature.set_label("gradients 0");
  return signature;
}

}  // namespace

TEST_CASE("records of another computer come with the state of their processes",
          "[record_exchange][threads]") {
  const TwoHosts hosts;
  FlightRecorder zero(hosts.folder(0), 0, 4), one(hosts.folder(1), 1, 4);
  zero.begin("world", all_reduce(0));
  FlightRecorder two(hosts.folder(2), 2, 4);
  two.note("step 3");
  const Child stopped([&] {
    const FlightRecorder three(hosts.folder(3), 3, 4);
    return ::raise(SIGSTOP);
  });
  stopped.await_end_or_stop();
  const auto asking = hosts.exchange(0), answering = hosts.exchange(2);
  CHECK(asking->several_hosts());
  const std::vector<RankRecord> records = asking->collect(60s);
  REQUIRE(records.size() == 4);
  for (int rank = 0; rank < 4; ++rank)
    CHECK(records[static_cast<std::size_t>(rank)].rank == rank);
  CHECK(records[2].note == "step 3");
  CHECK(records[2].process == ProcessState::running);
  CHECK(records[3].process == ProcessState::stopped);
  CHECK(std::ranges::none_of(records, &RankRecord::silent));
  CHECK_THAT(post_mortem(records, 4), Contains("rank 3") && Contains("is stopped"));
  // A copy stays for post_mortem(1).
  const auto copy = read_record(record_path(hosts.folder(0), 2));
  REQUIRE(copy);
  CHECK(copy->note == "step 3");
  // The next question is answered anew: a copy is no answer.
  two.note("step 4");
  CHECK(asking->collect(60s).at(2).note == "step 4");
}

TEST_CASE("the lowest rank of a computer that runs answers for it", "[record_exchange][threads]") {
  const TwoHosts hosts;
  const FlightRecorder zero(hosts.folder(0), 0, 4);
  Child lost([&] {
    FlightRecorder two(hosts.folder(2), 2, 4);
    two.begin("world", all_reduce(7));
    return 1;
  });
  lost.reap();
  FlightRecorder three(hosts.folder(3), 3, 4);
  const auto asking = hosts.exchange(0), answering = hosts.exchange(3);
  const auto records = asking->collect(60s);
  REQUIRE(records.size() == 3);  // rank 1 has no record
  CHECK(records[1].rank == 2);
  CHECK(records[1].lost());
  CHECK(records[2].rank == 3);
}

TEST_CASE("a post mortem names host and GPU where there are several", "[record_exchange]") {
  const auto sentence = [](const std::string& host_of_1) {
    std::vector<RankRecord> records(2);
    for (int rank = 0; RankRecord & record : records) {
      record.id = {.pid = 4710 + rank, .host = rank == 0 ? "node1" : host_of_1};
      record.gpu = rank == 0 ? "GPU-a" : "GPU-b";
      record.process = rank == 0 ? ProcessState::running : ProcessState::stopped;
      record.rank = rank++;
    }
    return post_mortem(records, 2);
  };
  CHECK_THAT(sentence("node1"), StartsWith("rank 1 (pid 4711, GPU-b) is stopped"));
  CHECK_THAT(sentence("node2"), StartsWith("rank 1 on node2 (pid 4711, GPU-b) is stopped"));
}

TEST_CASE("a computer that does not answer is named", "[record_exchange]") {
  const TwoHosts hosts;
  FlightRecorder zero(hosts.folder(0), 0, 4), one(hosts.folder(1), 1, 4);
  zero.begin("world", all_reduce(5));
  one.begin("world", all_reduce(5));
  for (const bool with_post : {true, false}) {
    const auto records = hosts.exchange(0, with_post)->collect(20ms);
    REQUIRE(records.size() == 4);
    CHECK_FALSE(records[1].silent);
    CHECK(records[2].silent);
    CHECK(records[3].silent);
    CHECK_THAT(
        post_mortem(records, 4),
        Contains("ranks 2, 3 on node2 do not answer: gone or stopped, or the network is down; "
                 "ranks 0, 1 wait for them in all_reduce 'gradients 0' (operation 5 of world)"));
  }
}

TEST_CASE("one computer reports, and the next one when the first cannot",
          "[record_exchange][threads]") {
  const TwoHosts hosts;
  const auto first = hosts.exchange(0), second = hosts.exchange(2);
  CHECK(first->await_turn());  // at once
  first->tell_reported();
  CHECK(eventually([&] { return second->reported_elsewhere(); }));
  CHECK_FALSE(second->await_turn());

  const TwoHosts apart;
  const auto begin = std::chrono::steady_clock::now();
  CHECK(apart.exchange(2)->await_turn());  // nobody else has
  CHECK(std::chrono::steady_clock::now() - begin >= 1900ms);
}

TEST_CASE("who asks does not wait for a mailbox that hangs", "[record_exchange][threads]") {
  class Hangs final : public Mailbox {
   public:
    explicit Hangs(std::shared_ptr<std::atomic<bool>> go_on) : go_on_(std::move(go_on)) {}
    void send(int, std::string_view) override { hang(); }
    std::optional<Letter> fetch() override {
      hang();
      return std::nullopt;
    }

   private:
    void hang() const {
      while (!*go_on_)
        std::this_thread::sleep_for(1ms);
    }
    std::shared_ptr<std::atomic<bool>> go_on_;
  };
  const auto go_on = std::make_shared<std::atomic<bool>>(false);
  const TwoHosts hosts;
  const FlightRecorder zero(hosts.folder(0), 0, 4);
  {
    RecordExchange exchange(std::make_unique<Hangs>(go_on), hosts.folder(0), 0, hosts.places);
    CHECK(exchange.collect(20ms).back().silent);
    CHECK(exchange.await_turn());
    exchange.tell_reported();
  }  // ends without its thread
  *go_on = true;
}

TEST_CASE("letters that are no records change nothing", "[record_exchange]") {
  const TwoHosts hosts;
  const FlightRecorder zero(hosts.folder(0), 0, 4);
  PostBox stranger(hosts.post, 2);
  stranger.send(0, "");
  stranger.send(0, "r");
  stranger.send(0, "r1");
  stranger.send(0, "r1x");
  stranger.send(0, "r1" + std::string(sizeof(std::uint64_t) * 8000, 'x'));
  stranger.send(0, "hello");
  const auto records = hosts.exchange(0)->collect(20ms);
  REQUIRE(records.size() == 3);
  CHECK(records[1].silent);
  CHECK(fs::exists(record_path(hosts.folder(0), 0)));
}

TEST_CASE("ranks of one computer ask nobody", "[record_exchange]") {
  const TempDir folder;
  const FlightRecorder zero(folder.path(), 0, 2), one(folder.path(), 1, 2);
  RecordExchange alone(nullptr, folder.path(), 0, {{0, "node1"}, {0, "node1"}});
  CHECK_FALSE(alone.several_hosts());
  CHECK(alone.collect(60s).size() == 2);
  CHECK(alone.await_turn());
}

}  // namespace sluice::test::record_exchange_test
