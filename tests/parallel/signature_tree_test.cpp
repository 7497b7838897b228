// More than eight ranks send tallies of signatures up a tree, and what all have started comes down.
#include <atomic>
#include <bit>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "parallel/comm/backend/signature.h"
#include "tests/parallel/checked_ranks.h"
#include "tests/parallel/forwarding_transport.h"
#include "tests/support/catch.h"

namespace sluice::test::signature_tree_test {
namespace {

Signature signature(std::string_view label, std::int64_t count = 8) {
  Signature s{.count = count, .kind = Collective::all_reduce, .dtype = DType::f32};
  s.set_label(label);
  return s;
}
std::string text_of(std::string_view label) {
  return to_string(signature(label));
}

std::string first_disagreement(const std::vector<Signature>& by_rank) {
  Tally all;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
    all.add(static_cast<int>(rank), by_rank[rank]);
  return all.disagreement();
}

/// Counts the messages that a rank starts.
class Counted final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  MessagePtr send(int to, int tag, std::span<const std::byte> bytes) override {
    ++sent;
    return ForwardingTransport::send(to, tag, bytes);
  }
  MessagePtr receive(int from, int tag, std::span<std::byte> bytes) override {
    ++received;
    return ForwardingTransport::receive(from, tag, bytes);
  }

  int sent = 0, received = 0;
};

/// Records what each rank hears, "agreed" or an error, and how many messages it took.
struct Heard {
  std::vector<std::string> by_rank;
  std::vector<int> sent, received;
};

/// Rank r starts the operation with the label `labels[r]`. Returns when all ranks have heard.
Heard heard(const std::vector<std::string>& labels) {
  const std::size_t ranks = labels.size();
  Heard heard{std::vector<std::string>(ranks), std::vector<int>(ranks), std::vector<int>(ranks)};
  run_on_threads(static_cast<int>(ranks), [&](std::unique_ptr<Transport> by) {
    Counted transport(std::move(by));
    const auto me = static_cast<std::size_t>(transport.rank());
    SignatureCheck check(transport, "test", signature(labels[me]), 5);
    try {
      while (!check.over())
        std::this_thread::yield();
      expect(check.advance() && check.over(), "an agreement was forgotten");
      heard.by_rank[me] = "agreed";
    } catch (const Error& error) {
      heard.by_rank[me] = error.what();
    }
    heard.sent[me] = transport.sent;
    heard.received[me] = transport.received;
  });
  return heard;
}

}  // namespace

TEST_CASE("a tally says who started what") {
  const Signature a = signature("a"), b = signature("b"), c = signature("c", 3);
  const std::string of_a = "all_reduce of 8 f32 'a' (operation 0)";
  const std::string of_b = "all_reduce of 8 f32 'b' (operation 0)";
  const std::string of_c = "all_reduce of 3 f32 'c' (operation 0)";
  CHECK(first_disagreement({a}).empty());
  CHECK(first_disagreement({b, b, b}).empty());
  CHECK(first_disagreement({a, b}) == "rank 1 started " + of_b + " where rank 0 started " + of_a);
  CHECK(first_disagreement({a, b, b}) ==
        "rank 0 started " + of_a + " where the others started " + of_b);
  CHECK(first_disagreement({b, b, a, b, a}) ==
        "ranks 2, 4 started " + of_a + " where the others started " + of_b);
  CHECK(first_disagreement({b, a, a, b}) ==
        "ranks 1, 2 started " + of_a + " where the others started " + of_b);  // a tie
  CHECK(first_disagreement({a, b, a, c}) == "rank 1 started " + of_b + " and rank 3 started " +
                                                of_c + " where the others started " + of_a);
  CHECK(first_disagreement({a, b, c}) ==
        "rank 1 started " + of_b + " and rank 2 started " + of_c + " where rank 0 started " + of_a);
}

// The host of the other rank may be waiting for its GPU, which waits for this rank's next
// operation.
TEST_CASE("ranks agree as soon as all have started an operation", "[threads]") {
  const int ranks = GENERATE(2, SignatureCheck::most_direct);
  std::atomic<int> agreed = 0;
  check_threads(ranks, [&](std::unique_ptr<Transport> transport) {
    SignatureCheck check(*transport, "test", signature("a"), 5);
    const bool idle = transport->rank() == 1;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (idle ? agreed < ranks - 1 : !check.advance()) {
      expect(std::chrono::steady_clock::now() < end, "the ranks wait for one that has started");
      std::this_thread::yield();
    }
    ++agreed;
    while (!check.over())
      std::this_thread::yield();
  });
}

TEST_CASE("signatures are told apart by everything in them") {
  const Signature one = signature("x");
  std::vector<Signature> others(7, one);
  others[0].sequence = 1;
  others[1].count = 9;
  others[2].root = 0;
  others[3].kind = Collective::reduce;
  others[4].dtype = DType::i32;
  others[5].set_label("y");
  others[6].any_order = true;
  for (const Signature& other : others)
    CHECK_FALSE(first_disagreement({one, other}).empty());
}

TEST_CASE("many ranks agree by two messages each on average", "[threads]") {
  for (const int ranks : {9, 16, 17, 31, 64, 100}) {
    CAPTURE(ranks);
    const auto [by_rank, sent, received] =
        heard(std::vector<std::string>(static_cast<std::size_t>(ranks), "x"));
    const int steps = static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
    int all_sent = 0;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      CAPTURE(rank);
      CHECK(by_rank[rank] == "agreed");
      CHECK(sent[rank] + received[rank] <= 2 * steps);
      all_sent += sent[rank];
    }
    CHECK(all_sent == 2 * (ranks - 1));
  }
}

TEST_CASE("all of many ranks hear which one started something else", "[threads]") {
  for (const int ranks : {9, 16, 23})
    for (int odd = 0; odd < ranks; ++odd) {
      CAPTURE(ranks, odd);
      std::vector<std::string> labels(static_cast<std::size_t>(ranks), "usual");
      labels[static_cast<std::size_t>(odd)] = "odd";
      const auto by_rank = heard(labels).by_rank;
      const std::string sentence = "the ranks of 'test' have lost each other: rank " +
                                   std::to_string(odd) + " started " + text_of("odd") +
                                   " where the others started " + text_of("usual");
      CHECK(by_rank == std::vector<std::string>(static_cast<std::size_t>(ranks), sentence));
    }
}

TEST_CASE("of many odd ranks the first are named, and the others counted", "[threads]") {
  std::vector<std::string> labels(40, "usual");
  for (std::size_t rank = 0; rank < 40; rank += 3)
    labels[rank] = "odd";
  const auto by_rank = heard(labels).by_rank;
  const std::string sentence =
      "the ranks of 'test' have lost each other: ranks 0, 3, 6, 9, 12, 15, 18, 21 and 6 more "
      "started " +
      text_of("odd") + " where the others started " + text_of("usual");
  CHECK(by_rank == std::vector<std::string>(40, sentence));
}

TEST_CASE("of many operations the first are named, and the ranks of others counted", "[threads]") {
  // Ranks 0 to 8 start the same, and each other one something of its own: more than the tally of
  // ranks 16 to 31 has room for.
  std::vector<std::string> labels(32, "usual");
  for (std::size_t rank = 9; rank < 32; ++rank)
    labels[rank] = std::to_string(rank);
  const auto by_rank = heard(labels).by_rank;
  std::string sentence = "the ranks of 'test' have lost each other: ";
  for (int rank = 9; rank < 16; ++rank)
    sentence +=
        "rank " + std::to_string(rank) + " started " + text_of(std::to_string(rank)) + " and ";
  sentence +=
      "16 more started what is not listed where ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more started " +
      text_of("usual");
  CHECK(by_rank == std::vector<std::string>(32, sentence));
}

TEST_CASE("the operation of most ranks is the usual one, wherever they are", "[threads]") {
  // Ranks 0 to 8 take the places for operations first; the first of a single rank has to go.
  std::vector<std::string> labels(40, "usual");
  for (std::size_t rank = 0; rank < 9; ++rank)
    labels[rank] = rank < 2 ? "pair" : std::to_string(rank);
  for (const std::string& sentence : heard(labels).by_rank) {
    CHECK_THAT(sentence, Contains("ranks 0, 1 started " + text_of("pair") + " and rank 3"));
    CHECK_THAT(sentence, Contains("rank 8 started " + text_of("8")));
    CHECK_THAT(sentence, Contains("1 more started what is not listed"));
    CHECK_THAT(sentence, EndsWith("where ranks 9, 10, 11, 12, 13, 14, 15, 16 and 23 more started " +
                                  text_of("usual")));
  }
}

TEST_CASE("ranks of a tree hear of a mismatch where others come late", "[threads]") {
  // Two operations are under way at a time, in a group of other numbers than its ranks have.
  std::vector<std::string> by_rank(12);
  const auto run = [&](std::unique_ptr<Transport> world) {
    const int number = 11 - world->rank();
    const int members[] = {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
    Communicator c(world->subgroup(members, 1), nullptr, patient());
    try {
      const Handle first = c.barrier("first"), second = c.barrier(number == 5 ? "odd" : "usual");
      if (number == 4 || number == 8) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      second->wait();
      first->wait();
    } catch (const Error& error) {
      by_rank[static_cast<std::size_t>(number)] = error.what();
      throw;
    }
  };
  CHECK_THROWS_AS(run_on_threads(12, run), Error);
  for (const std::string& sentence : by_rank)
    CHECK_THAT(sentence, Contains("rank 5 started barrier 'odd' (operation 1) where the others "
                                  "started barrier 'usual' (operation 1)"));
}

}  // namespace sluice::test::signature_tree_test
