// Collectives of more ranks than a machine has cores: their results, and how many messages they
// take.
#include <bit>

#include "engine/process_state.h"
#include "parallel/comm/agreement.h"
#include "tests/parallel/battery.h"
#include "tests/parallel/many_ranks/simulated_network.h"
#include "tests/parallel/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"

namespace sluice::test::many_ranks_test {
namespace {

void simulate(int ranks, const std::function<void(Communicator&, SimulatedRank&)>& body,
              bool checked = true, const Network& network = {}) {
  run_simulated(ranks, network, [&](SimulatedRank& rank) {
    Communicator communicator(rank.world(), nullptr,
                              {.name = "many", .timeout = 600, .checked = checked});
    body(communicator, rank);
  });
}

std::int64_t rounds_of(int ranks) {
  return std::bit_width(static_cast<unsigned>(ranks) - 1);
}

}  // namespace

TEST_CASE("collectives of many ranks have the results of few") {
  for (const int ranks : {9, 16, 33, 100})
    for (const std::size_t count : {0U, 1U, 65U, 1000U})
      if (in_form(2, {ranks, static_cast<std::int64_t>(count)}))
        REQUIRE_NOTHROW(simulate(ranks,
                                 [&](Communicator& c, SimulatedRank&) {
                                   Battery<float>::all_gather(c, count);
                                   Battery<double>::all_reduce(c, count);
                                   if (count < 100) Battery<BFloat16>::broadcast(c, count);
                                   Battery<std::int32_t>::reduce_scatter(c, count);
                                 },
                                 true, {.jitter = 3, .seed = count}));
}

TEST_CASE("equal parts come from many ranks, wherever they lie") {
  for (const int ranks : {9, 16, 17, 33, 64, 100}) {
    CAPTURE(ranks);
    REQUIRE_NOTHROW(simulate(ranks, [&](Communicator& c, SimulatedRank&) {
      // The parts are in the opposite order, and there is a gap behind each.
      const auto n = static_cast<std::size_t>(ranks);
      std::vector<Part> parts;
      for (std::size_t rank = 0; rank < n; ++rank)
        parts.push_back({static_cast<std::int64_t>((n - 1 - rank) * 5), 3});
      std::vector<float> wanted(n * 5, -1), data(n * 5, -1);
      for (std::size_t rank = 0; rank < n; ++rank)
        for (std::size_t i = 0; i < 3; ++i)
          wanted[(n - 1 - rank) * 5 + i] = static_cast<float>(rank * 3 + i);
      const std::size_t mine = (n - 1 - static_cast<std::size_t>(c.rank())) * 5;
      std::copy_n(wanted.begin() + static_cast<std::ptrdiff_t>(mine), 3,
                  data.begin() + static_cast<std::ptrdiff_t>(mine));
      c.all_gather(view_of(data), parts, {.label = "parts"})->wait();
      expect_same(data, wanted, "an all_gather of equal parts");
    }));
  }
}

TEST_CASE("a reduction in any order, of many ranks") {
  for (const int ranks : {2, 8, 9, 16, 33, 100}) {
    CAPTURE(ranks);
    REQUIRE_NOTHROW(simulate(ranks, [&](Communicator& c, SimulatedRank&) {
      // One rank has an element's value, and the others have zeros.
      const auto wanted = numbers<double>(ranks, c.size() > 16 ? 30000 : 1000);
      std::vector<double> data(wanted.size());
      for (std::size_t i = 0; i < data.size(); ++i)
        if (i % static_cast<std::size_t>(ranks) == static_cast<std::size_t>(c.rank()))
          data[i] = wanted[i];
      c.all_reduce(view_of(data), {.label = "spread", .any_order = true})->wait();
      expect_same(data, wanted, "a sum in which each element is one rank's");
      expect(largest_of_each(c, {c.rank(), -c.rank(), 7}, "largest") ==
                 std::vector<std::int32_t>{ranks - 1, 0, 7},
             "largest_of_each");
      for (int one = 0; one < ranks; one += 7) {
        expect(any_rank(c, c.rank() == one, "any"), "one rank was not heard");
        const std::string text = c.rank() == one ? "other" : "usual";
        expect(!all_equal(c, std::as_bytes(std::span(text)), "equal"), "a text was overlooked");
      }
      expect(!any_rank(c, false, "any"), "a rank was heard that had said nothing");
      expect(all_equal(c, std::as_bytes(std::span("same")), "equal"), "equal texts differ");
    }));
  }
}

TEST_CASE("texts of many ranks") {
  for (const int ranks : {3, 20})
    REQUIRE_NOTHROW(simulate(ranks, [&](Communicator& c, SimulatedRank&) {
      const auto text_of = [](int rank) {
        return std::string(static_cast<std::size_t>(rank) * 37 % 50, static_cast<char>('a' + rank));
      };
      const auto texts = c.gather_texts(text_of(c.rank()), "texts");
      for (int rank = 0; rank < ranks; ++rank)
        expect(texts.at(static_cast<std::size_t>(rank)) == text_of(rank), "gather_texts");
      expect(c.share_text(text_of(c.rank()), 2, "text") == text_of(2), "share_text");
      require_equal(c, "text", "the same");
    }));
  CHECK_THROWS_WITH(
      simulate(20,
               [&](Communicator& c, SimulatedRank&) {
                 require_equal(c, "text", c.rank() == 11 ? "mine" : "yours");
               }),
      Contains("rank 11 on " + this_process().host + " has another text than rank 0 on " +
               this_process().host + ": mine and yours"));
}

TEST_CASE("a rank of many sends a message a round") {
  for (const int ranks : {9, 64, 1000}) {
    CAPTURE(ranks);
    const std::int64_t rounds = rounds_of(ranks);
    REQUIRE_NOTHROW(simulate(
        ranks,
        [&](Communicator& c, SimulatedRank& rank) {
          auto sent = [&, before = std::int64_t{0}]() mutable {
            const std::int64_t all = rank.traffic().messages;
            return all - std::exchange(before, all);
          };
          c.barrier("barrier")->wait();
          expect(sent() == rounds, "a barrier");
          static_cast<void>(c.gather_values(std::int64_t{1}, "gather"));
          expect(sent() == rounds, "an all_gather");
          static_cast<void>(any_rank(c, false, "any"));
          expect(sent() <= rounds + 1, "an all_reduce in any order");
          static_cast<void>(c.share_text("text", 0, "text"));
          expect(sent() <= 2 * rounds, "a text");
        },
        false));
  }
}

TEST_CASE("the first of the ranks for which something holds") {
  for (const int ranks : {1, 2, 9, 33})
    for (const int first : {0, ranks / 2, ranks - 1, ranks}) {
      CAPTURE(ranks, first);
      REQUIRE_NOTHROW(simulate(ranks, [&](Communicator& c, SimulatedRank&) {
        // It also holds for every third rank after it.
        const bool here = c.rank() >= first && (c.rank() - first) % 3 == 0;
        const std::optional<int> wanted = first < ranks ? std::optional(first) : std::nullopt;
        expect(first_rank(c, here, "first") == wanted, "first_rank");
      }));
    }
}

TEST_CASE("the simulated clock") {
  // A round takes the sender's gap, the byte, the latency and the receiver's gap.
  std::vector<double> ends(64);
  simulate(64,
           [&](Communicator& c, SimulatedRank& rank) {
             c.barrier("barrier")->wait();
             ends[static_cast<std::size_t>(c.rank())] = rank.traffic().seconds;
           },
           false, {.latency = 5e-6, .bytes_per_second = 1e6, .gap = 1e-6});
  for (const double end : ends)
    CHECK(end == Approx(6 * (1e-6 + 1e-6 + 5e-6 + 1e-6)));
  // The link sends one message after the other.
  double last = 0;
  simulate(3,
           [&](Communicator& c, SimulatedRank& rank) {
             std::vector<float> data(1000);
             const bool source = c.rank() == 0;
             std::vector<Transfer> transfers;
             if (source) transfers = {{true, 1, view_of(data)}, {true, 2, view_of(data)}};
             if (!source) transfers = {{false, 0, view_of(data)}};
             c.p2p(transfers, {})->wait();
             last = std::max(last, rank.traffic().seconds);
             if (source) expect(rank.traffic().bytes == 8000, "the bytes of two messages");
           },
           false, {.latency = 0, .bytes_per_second = 1e6, .gap = 0});
  CHECK(last == Approx(8e-3));
}

TEST_CASE("many ranks hear of one that fails, and of one that never comes") {
  int heard = 0;
  const auto body = [&heard](bool silently) {
    return [&heard, silently](Communicator& c, SimulatedRank&) {
      if (c.rank() == 77 && silently) return;
      if (c.rank() == 77) fail("the disk is full");
      try {
        c.barrier("after")->wait();
      } catch (const Error&) {
        ++heard;
        throw;
      }
    };
  };
  CHECK_THROWS_WITH(simulate(100, body(false)), Contains("the disk is full"));
  CHECK(heard == 99);
  heard = 0;
  CHECK_THROWS_WITH(simulate(100, body(true)), Contains("none of 99 ranks can go on"));
  CHECK(heard == 99);
}

}  // namespace sluice::test::many_ranks_test
