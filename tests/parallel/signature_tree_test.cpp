// More ranks than tell each other their signatures: tallies go up a tree and down again.
#include <bit>
#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "parallel/comm/backend/signature.h"
#include "tests/parallel/ranks.h"

namespace sluice::test::signature_tree_test {
namespace {

Signature signature(std::string_view label) {
  Signature s{.count = 8, .kind = Collective::all_reduce, .dtype = DType::f32};
  s.set_label(label);
  return s;
}
std::string text_of(std::string_view label) {
  return to_string(signature(label));
}

/// Counts the messages that a rank starts.
class Counted final : public Transport {
 public:
  explicit Counted(std::unique_ptr<Transport> by) : by_(std::move(by)) {}
  std::string_view name() const override { return by_->name(); }
  int rank() const override { return by_->rank(); }
  int size() const override { return by_->size(); }
  MessagePtr send(int to, int tag, std::span<const std::byte> bytes) override {
    ++sent;
    return by_->send(to, tag, bytes);
  }
  MessagePtr receive(int from, int tag, std::span<std::byte> bytes) override {
    ++received;
    return by_->receive(from, tag, bytes);
  }
  std::unique_ptr<Transport> subgroup(std::span<const int> members, std::uint64_t id) override {
    return by_->subgroup(members, id);
  }

  int sent = 0, received = 0;

 private:
  std::unique_ptr<Transport> by_;
};

/// What each rank hears: "agreed" or an error.
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
      while (!check.advance())
        std::this_thread::yield();
      expect(check.advance(), "an agreement was forgotten");
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
  sentence += "16 more started yet others where the others started " + text_of("usual");
  CHECK(by_rank == std::vector<std::string>(32, sentence));
}

}  // namespace sluice::test::signature_tree_test
