// Ranks that do not do the same: every one of them must hear of it, with who did what.
#include "parallel/comm/backend/signature.h"

#include <atomic>
#include <thread>

#include "tests/parallel/checked_ranks.h"
#include "tests/parallel/ranks.h"
#include "tests/support/catch.h"

namespace sluice::test::signature_check_test {

namespace {

constexpr std::int64_t most = 20000;

/// The arrays of all ranks. They live longer than the ranks, of which some fail while others may
/// still read what they have sent.
struct Memory {
  explicit Memory(int ranks) : of(static_cast<std::size_t>(ranks), std::vector<float>(most)) {}
  View data(int rank, std::int64_t count) {
    return {reinterpret_cast<std::byte*>(of[static_cast<std::size_t>(rank)].data()),
            DType::f32,
            {count}};
  }
  std::vector<std::vector<float>> of;
};

/// Makes one fault, at one operation.
class Faulty final : public Monitor {
 public:
  Faulty(Fault fault, int at) : fault_(fault), at_(at) {}
  Fault before() override { return next_++ == at_ ? fault_ : Fault::none; }
  std::uint64_t begin(std::string_view communicator, const Signature& signature) override {
    begun.push_back(std::string(communicator) + ": " + to_string(signature));
    return begun.size();
  }
  void wait(std::uint64_t, double) override {}
  void end(std::uint64_t number) override { ended.push_back(number); }
  std::string post_mortem() override { return "nobody knows"; }

  std::vector<std::string> begun;
  std::vector<std::uint64_t> ended;

 private:
  Fault fault_;
  int at_, next_ = 0;
};

/// The error that ends each rank of a group; "" if there is none.
using Failures = std::vector<std::string>;
using FaultyBody = std::function<void(Communicator&, Memory&)>;
Failures failures(int ranks, const FaultyBody& body,
                  const Communicator::Options& options = patient(),
                  const std::function<std::shared_ptr<Monitor>(int)>& monitor = nullptr) {
  Memory memory(ranks);
  Failures by_rank(static_cast<std::size_t>(ranks));
  const auto run = [&](std::unique_ptr<Transport> transport) {
    const int rank = transport->rank();
    Communicator c(std::move(transport), monitor ? monitor(rank) : nullptr, options);
    try {
      body(c, memory);
    } catch (const std::exception& error) {
      by_rank[static_cast<std::size_t>(rank)] = error.what();
      throw;
    }
  };
  try {
    run_on_threads(ranks, run);
  } catch (const std::exception&) {  // one of those kept above
  }
  return by_rank;
}

void require_all_say(const Failures& by_rank, const std::string& sentence) {
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    INFO("rank " << rank);
    REQUIRE_THAT(by_rank[rank], Contains(sentence));
  }
}

struct Pair {
  const char* name;
  std::function<Handle(Communicator&, Memory&, bool odd)> start;
  const char *odd, *usual;
};

const Pair pairs[] = {
    {"another collective",
     [](Communicator& c, Memory& m, bool odd) {
       return odd ? c.broadcast(m.data(c.rank(), 100), 0, {.label = "x"})
                  : c.all_reduce(m.data(c.rank(), 100), {.label = "x"});
     },
     "broadcast of 100 f32, root 0, 'x' (operation 1)", "all_reduce of 100 f32 'x' (operation 1)"},
    {"a barrier",
     [](Communicator& c, Memory& m, bool odd) {
       return odd ? c.barrier("b") : c.all_reduce(m.data(c.rank(), 0), {.label = "x"});
     },
     "barrier 'b' (operation 1)", "all_reduce of 0 f32 'x' (operation 1)"},
    {"another count, exchanged whole",
     [](Communicator& c, Memory& m, bool odd) {
       return c.all_reduce(m.data(c.rank(), odd ? 99 : 100), {.label = "x"});
     },
     "all_reduce of 99 f32 'x' (operation 1)", "all_reduce of 100 f32 'x' (operation 1)"},
    {"another count, in parts",
     [](Communicator& c, Memory& m, bool odd) {
       return c.all_reduce(m.data(c.rank(), odd ? 20000 : 10000), {.label = "x"});
     },
     "all_reduce of 20000 f32 'x' (operation 1)", "all_reduce of 10000 f32 'x' (operation 1)"},
    {"another root",
     [](Communicator& c, Memory& m, bool odd) {
       return c.reduce(m.data(c.rank(), 50), odd ? 0 : 1, {.label = "x"});
     },
     "reduce of 50 f32, root 0, 'x' (operation 1)", "reduce of 50 f32, root 1, 'x' (operation 1)"},
    {"another label",
     [](Communicator& c, Memory& m, bool odd) {
       return c.all_reduce(m.data(c.rank(), 50), {.label = odd ? "gradients 3" : "gradients 2"});
     },
     "all_reduce of 50 f32 'gradients 3' (operation 1)",
     "all_reduce of 50 f32 'gradients 2' (operation 1)"},
    {"another type",
     [](Communicator& c, Memory& m, bool odd) {
       View data = m.data(c.rank(), 50);
       if (odd) data.dtype = DType::i32;
       return c.broadcast(data, 0, {.label = "x"});
     },
     "broadcast of 50 i32, root 0, 'x' (operation 1)",
     "broadcast of 50 f32, root 0, 'x' (operation 1)"},
};

std::string sentence_of(int ranks, int odd, const std::string& what, const std::string& usual) {
  return "rank " + std::to_string(odd) + " started " + what + " where " +
         (ranks == 2 ? "rank 0" : "the others") + " started " + usual;
}

}  // namespace

TEST_CASE("ranks that start different operations all hear who did what", "[threads]") {
  for (const Pair& pair : pairs)
    for (const auto& [ranks, odd] : {std::pair(2, 1), {3, 0}, {3, 2}, {4, 2}}) {
      INFO(pair.name << " on rank " << odd << " of " << ranks);
      const auto by_rank = failures(ranks, [&, culprit = odd](Communicator& c, Memory& memory) {
        c.barrier("before")->wait();
        pair.start(c, memory, c.rank() == culprit)->wait();
      });
      require_all_say(by_rank, sentence_of(ranks, odd, pair.odd, pair.usual));
    }
}

TEST_CASE("the rank that comes last to a mismatch explains it too", "[threads]") {
  // It finds messages of another size already there, when it starts its operation.
  std::atomic<int> started = 0;
  const auto by_rank = failures(3, [&](Communicator& c, Memory& memory) {
    const bool last = c.rank() == 1;
    while (last && started < 2)
      std::this_thread::yield();
    const Handle operation = c.all_reduce(memory.data(c.rank(), last ? 7 : 9), {.label = "x"});
    ++started;
    operation->wait();
  });
  require_all_say(by_rank, sentence_of(3, 1, "all_reduce of 7 f32 'x' (operation 0)",
                                       "all_reduce of 9 f32 'x' (operation 0)"));
}

TEST_CASE("a mismatch stays one however often it is asked about", "[threads]") {
  const auto by_rank = failures(2, [](Communicator& c, Memory&) {
    const Handle operation = c.barrier(c.rank() == 0 ? "a" : "b");
    for (int i = 0; i < 3; ++i) {
      bool threw = false;
      try {
        operation->wait();
      } catch (const Error&) {
        threw = true;
      }
      expect(threw, "a mismatch was forgotten");
    }
    operation->wait();
  });
  require_all_say(by_rank, "rank 1 started barrier 'b' (operation 0)");
}

TEST_CASE("injected faults are found", "[threads]") {
  using Fault = Monitor::Fault;
  struct Case {
    Fault fault;
    bool barrier;
    const char *odd, *usual;
  };
  const Case cases[] = {
      {Fault::skip, false, "barrier 'end' (operation 1)", "all_reduce of 64 f32 'x' (operation 1)"},
      {Fault::skip, true, "barrier 'end' (operation 1)", "barrier 'x' (operation 1)"},
      {Fault::mismatch, false, "barrier 'x' (operation 1)",
       "all_reduce of 64 f32 'x' (operation 1)"},
      {Fault::mismatch, true, "all_reduce of 0 f32 'x' (operation 1)", "barrier 'x' (operation 1)"},
      {Fault::count, false, "all_reduce of 63 f32 'x' (operation 1)",
       "all_reduce of 64 f32 'x' (operation 1)"},
  };
  for (const Case& one : cases)
    for (const int ranks : {2, 4}) {
      INFO(static_cast<int>(one.fault) << (one.barrier ? " in a barrier" : "") << ", " << ranks);
      const auto body = [&](Communicator& c, Memory& memory) {
        c.barrier("before")->wait();
        if (one.barrier)
          c.barrier("x")->wait();
        else
          c.all_reduce(memory.data(c.rank(), 64), {.label = "x"})->wait();
        c.barrier("end")->wait();
      };
      const auto by_rank = failures(ranks, body, patient(), [&](int rank) {
        return std::make_shared<Faulty>(rank == 1 ? one.fault : Fault::none, 1);
      });
      require_all_say(by_rank, sentence_of(ranks, 1, one.odd, one.usual));
    }
}

TEST_CASE("a fault on all ranks is no disagreement", "[threads]") {
  const auto by_rank = failures(
      3,
      [](Communicator& c, Memory&) {
        c.barrier("x")->wait();
        c.barrier("end")->wait();
      },
      patient(), [](int) { return std::make_shared<Faulty>(Monitor::Fault::mismatch, 0); });
  CHECK(by_rank == Failures{"", "", ""});
}

TEST_CASE("faults of gathers, scatters and parts are found", "[threads]") {
  for (const auto fault : {Monitor::Fault::mismatch, Monitor::Fault::count})
    for (int kind = 0; kind < 5; ++kind) {
      INFO(static_cast<int>(fault) << " of kind " << kind);
      const auto body = [&](Communicator& c, Memory& memory) {
        const View data = memory.data(c.rank(), 1000);
        std::vector<float> room(static_cast<std::size_t>(1000 * c.size()));
        const auto parts = even_parts(1000, c.size());
        const Handle operation =
            kind == 0   ? c.gather(data, view_of(room), 0, {.label = "x"})
            : kind == 1 ? c.scatter(data, memory.data(c.rank(), 250), 0, {.label = "x"})
            : kind == 2 ? c.all_gather(data, parts, {.label = "x"})
            : kind == 3 ? c.reduce_scatter(data, parts, {.label = "x"})
                        : c.reduce(data, 0, {.label = "x"});
        operation->wait();
        c.barrier("end")->wait();
      };
      const auto by_rank = failures(4, body, patient(), [&](int rank) {
        return std::make_shared<Faulty>(rank == 2 ? fault : Monitor::Fault::none, 0);
      });
      require_all_say(by_rank, "rank 2 started ");
      require_all_say(by_rank, " where the others started ");
    }
}

TEST_CASE("the monitor sees every operation begin and end once", "[threads]") {
  std::vector<std::shared_ptr<Faulty>> monitors;
  for (int rank = 0; rank < 2; ++rank)
    monitors.push_back(std::make_shared<Faulty>(Monitor::Fault::none, 0));
  const auto by_rank = failures(
      2,
      [](Communicator& c, Memory& memory) {
        std::vector<std::int32_t> number{c.rank()};  // two operations, two arrays
        const Handle first = c.all_reduce(memory.data(c.rank(), 10), {.label = "a"});
        const Handle second = c.broadcast(view_of(number), 1, {.label = "b"});
        second->wait();
        first->wait();
        c.split(0, 0, {.name = "part"})->barrier("c")->wait();
      },
      patient(), [&](int rank) { return monitors[static_cast<std::size_t>(rank)]; });
  REQUIRE(by_rank == Failures{"", ""});
  for (const auto& monitor : monitors) {
    CHECK(monitor->begun ==
          std::vector<std::string>{"test: all_reduce of 10 f32 'a' (operation 0)",
                                   "test: broadcast of 1 i32, root 1, 'b' (operation 1)",
                                   "test: all_gather of 24 u8 'split' (operation 2)",
                                   "part: barrier 'c' (operation 0)"});
    std::ranges::sort(monitor->ended);
    CHECK(monitor->ended == std::vector<std::uint64_t>{1, 2, 3, 4});
  }
}

TEST_CASE("when a rank throws, the others end with an error that names it", "[threads]") {
  for (const bool checked : {true, false}) {
    auto options = patient();
    options.checked = checked;
    for (const int ranks : {2, 3, 8}) {
      const auto by_rank = failures(
          ranks,
          [](Communicator& c, Memory& memory) {
            const Handle operation = c.all_reduce(memory.data(c.rank(), most), {.label = "x"});
            if (c.rank() == 1) throw std::runtime_error("the disk is full");
            operation->wait();
            c.barrier("never")->wait();
          },
          options);
      CHECK(by_rank[1] == "the disk is full");
      for (int rank = 0; rank < ranks; ++rank)
        if (rank != 1)
          CHECK_THAT(by_rank[static_cast<std::size_t>(rank)],
                     Contains("rank 1 has failed: the disk is full"));
    }
  }
}

TEST_CASE("a rank that never joins is an error at the deadline", "[threads]") {
  auto options = patient();
  options.timeout = 0.2;
  const auto slow = [](Communicator& c, Memory& memory) {
    if (c.rank() == 1) return;
    c.all_reduce(memory.data(c.rank(), 100), {.label = "lonely"})->wait();
  };
  const std::string rest =
      "; rank 0 waited 0.2 s in all_reduce of 100 f32 'lonely' (operation 0) of 'test'";
  auto by_rank = failures(2, slow, options);
  CHECK_THAT(by_rank[0], StartsWith("some rank did not join in" + rest));
  CHECK(by_rank[1].empty());
  by_rank = failures(2, slow, options,
                     [](int) { return std::make_shared<Faulty>(Monitor::Fault::none, 0); });
  CHECK_THAT(by_rank[0], StartsWith("nobody knows" + rest));
}

TEST_CASE("without signatures another count is an error and no wrong result", "[threads]") {
  auto options = patient();
  options.checked = false;
  options.timeout = 0.2;
  // The third pair: half of 4096 numbers is as long as all of 2048, which go in another way.
  for (const auto& [usual, other] : {std::pair(100, 99), {10000, 20000}, {2048, 4096}})
    for (const int odd : {0, 1}) {
      INFO(usual << " and " << other << " on rank " << odd);
      const auto by_rank = failures(
          2,
          [&, expected = usual, wrong = other](Communicator& c, Memory& memory) {
            const std::int64_t count = c.rank() == odd ? wrong : expected;
            c.all_reduce(memory.data(c.rank(), count), {.label = "x"})->wait();
          },
          options);
      for (const std::string& failure : by_rank)
        CHECK_FALSE(failure.empty());
    }
  const auto by_rank = failures(
      2,
      [](Communicator& c, Memory& memory) {
        c.p2p({{c.rank() == 0, 1 - c.rank(), memory.data(c.rank(), 5 + c.rank())}}, {})->wait();
      },
      options);
  require_all_say(by_rank, "a message of 20 bytes came where 24 were expected");
}

TEST_CASE("labels are cut at their length and shorter ones leave nothing behind") {
  Signature s;
  s.set_label(std::string(60, 'a'));
  CHECK(s.label_text() == std::string(Signature::label_bytes, 'a'));
  s.set_label("bc");
  CHECK(s.label_text() == "bc");
  Signature fresh;
  fresh.set_label("bc");
  CHECK(s == fresh);
}

TEST_CASE("a short message arrives although its sender has gone", "[threads]") {
  check_threads(2, [](std::unique_ptr<Transport> transport) {
    const std::array sent{std::byte{1}, std::byte{2}};
    std::array<std::byte, 2> got{};
    constexpr int early = 3, late = 4;
    if (transport->rank() == 0) {
      transport->send(1, early, sent);  // dropped at once
      const MessagePtr last = transport->send(1, late, sent);
      while (!last->done()) {
      }
      return;
    }
    const MessagePtr last = transport->receive(0, late, got);
    while (!last->done()) {
    }
    got = {};
    const MessagePtr first = transport->receive(0, early, got);
    expect(first->done(), "the message is there");
    expect(got == sent, "its bytes are those that were sent");
  });
}

}  // namespace sluice::test::signature_check_test
