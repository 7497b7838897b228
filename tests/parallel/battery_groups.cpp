// The part of the battery that is not about one operation at a time.
#include "tests/parallel/battery.h"
#include "tests/parallel/ranks.h"

namespace sluice::test {

void check_cuts(Communicator& c, std::size_t count) {
  const auto wanted = reduced<float>(c.size(), count, 3);
  const auto others = reduced<double>(c.size(), 77, 4);
  for (const int pieces : {1, 2, 3, 7}) {
    auto data = numbers<float>(c.rank(), count, 3);
    auto beside = numbers<double>(c.rank(), 77, 4);
    std::vector<std::int32_t> told{c.rank() == 0 ? 41 + pieces : 0};
    std::vector<Handle> under_way;
    for (const Part& part : even_parts(static_cast<std::int64_t>(count), pieces, 1)) {
      View piece = view_of(data);
      piece = View(piece.address + part.offset * static_cast<std::int64_t>(sizeof(float)),
                   DType::f32, {part.count});
      under_way.push_back(c.all_reduce(piece, {.label = "piece"}));
    }
    under_way.push_back(c.all_reduce(view_of(beside), {.label = "beside"}));
    under_way.push_back(c.broadcast(view_of(told), 0, {.label = "told"}));
    under_way.push_back(c.barrier("last"));
    // Each rank waits in an order of its own.
    const auto first = static_cast<std::size_t>(c.rank()) % under_way.size();
    std::ranges::rotate(under_way, under_way.begin() + static_cast<std::ptrdiff_t>(first));
    if (c.rank() % 2 == 0) std::ranges::reverse(under_way);
    for (const Handle& operation : under_way) {
      operation->wait();
      expect(operation->done(), "an operation that was waited for is not done");
    }
    expect_same(data, wanted, "an all_reduce in pieces");
    expect_same(beside, others, "an all_reduce beside others");
    expect(told[0] == 41 + pieces, "a broadcast beside others");
  }
}

void check_message_order(Communicator& c) {
  constexpr int calls = 3, messages = 4;
  const int peer = c.rank() ^ 1;
  if (peer >= c.size()) return;
  // All of the same size, so that only their order tells them apart.
  std::vector<std::vector<std::int32_t>> out, in(calls * messages, std::vector<std::int32_t>(100));
  for (int i = 0; i < calls * messages; ++i)
    out.emplace_back(100, 1000 * c.rank() + i);
  std::vector<Handle> under_way;
  std::size_t at = 0;
  for (int call = 0; call < calls; ++call) {
    std::vector<Transfer> transfers;
    for (int i = 0; i < messages; ++i, ++at) {
      transfers.push_back({true, peer, view_of(out[at])});
      transfers.push_back({false, peer, view_of(in[at])});
    }
    under_way.push_back(c.p2p(std::move(transfers), {.label = "in order"}));
  }
  for (int call = calls - 1; call >= 0; --call) {
    const auto which = static_cast<std::size_t>(call);
    under_way[which]->wait();
    for (std::size_t i = which * messages; i < (which + 1) * messages; ++i)
      expect(in[i].front() == 1000 * peer + static_cast<int>(i) && in[i].back() == in[i].front(),
             "messages between two ranks came in another order than they were sent");
  }
}

void check_split(Communicator& c) {
  const int n = c.size(), rank = c.rank();
  auto halves = c.split(rank % 2, 0, {.name = "parity " + std::to_string(rank % 2)});
  expect(halves != nullptr, "a colour made no group");
  expect(halves->size() == (n + 1 - rank % 2) / 2 && halves->rank() == rank / 2, "split by parity");
  expect(halves->name() == "parity " + std::to_string(rank % 2), "the name of a group");
  const auto mates = halves->gather_values(rank, "mates");
  for (std::size_t i = 0; i < mates.size(); ++i)
    expect(mates[i] == static_cast<int>(2 * i) + rank % 2, "the members of a group");

  auto reversed = c.split(5, -rank, {.name = "reversed"});
  expect(reversed->size() == n && reversed->rank() == n - 1 - rank, "keys that reverse the ranks");
  auto keyed = c.split(0, rank / 2 == 0 ? 1 : 0, {.name = "keyed"});
  const int behind = std::min(n, 2), in_front = n - behind;
  expect(keyed->rank() == (rank < 2 ? in_front + rank : rank - 2), "equal keys go by rank");

  // The order of the sum is that of the group's ranks.
  std::vector<int> order = in_order(n);
  std::ranges::reverse(order);
  auto data = numbers<float>(rank, 5000, 6);
  reversed->all_reduce(view_of(data), {.label = "reversed"})->wait();
  expect_same(data, reduced<float>(order, 5000, 6, ReduceOp::sum), "a sum in a reversed group");

  auto some = c.split(rank == 0 ? -1 : 1, rank, {.name = "some"});
  expect((some == nullptr) == (rank == 0), "a negative colour is no group");
  if (some != nullptr) {
    expect(some->size() == n - 1 && some->rank() == rank - 1, "a group without rank 0");
    expect(some->share_text("from " + std::to_string(rank), n - 2, "text") ==
               "from " + std::to_string(n - 1),
           "the last rank's text in a group without rank 0");
  }

  // Twins: the same ranks in the same order, whose operations must not meet. Each rank begins with
  // another of the two.
  auto one = c.split(0, rank, {.name = "one"}), two = c.split(0, rank, {.name = "two"});
  auto ones = numbers<float>(rank, 500, 11), twos = numbers<float>(rank, 500, 12);
  std::vector<Handle> both(2);
  for (const int which : {rank % 2, 1 - rank % 2})
    both[static_cast<std::size_t>(which)] =
        which == 0 ? one->all_reduce(view_of(ones), {.label = "in one"})
                   : two->all_reduce(view_of(twos), {.label = "in two"});
  for (const Handle& operation : both)
    operation->wait();
  expect_same(ones, reduced<float>(n, 500, 11), "a sum in one of two equal groups");
  expect_same(twos, reduced<float>(n, 500, 12), "a sum in the other of two equal groups");

  // A group of a group, all of them and the world at work at once, begun in the same order.
  auto inner = halves->split(halves->rank() % 2, 0, {.name = "inner"});
  const auto step = [](int first, int by, int end) {
    std::vector<int> members;
    for (int member = first; member < end; member += by)
      members.push_back(member);
    return members;
  };
  auto a = numbers<float>(rank, 9000, 7), b = a, w = a;
  const Handle in_world = c.all_reduce(view_of(w), {.label = "world"});
  const Handle in_halves = halves->all_reduce(view_of(a), {.label = "halves"});
  const Handle in_inner = inner->all_reduce(view_of(b), {.label = "inner"});
  in_inner->wait();
  in_world->wait();
  in_halves->wait();
  expect_same(a, reduced<float>(step(rank % 2, 2, n), 9000, 7, ReduceOp::sum), "a sum of a half");
  expect_same(b, reduced<float>(step(rank % 4, 4, n), 9000, 7, ReduceOp::sum), "a sum of a fourth");
  expect_same(w, reduced<float>(n, 9000, 7), "the world's sum beside those of its groups");
}

void check_values(Communicator& c) {
  struct Said {
    double number;
    int rank;
    int twice;
  };
  const auto said = c.gather_values(Said{c.rank() * 0.5, c.rank(), 2 * c.rank()}, "said");
  expect(said.size() == static_cast<std::size_t>(c.size()), "a value of each rank");
  for (int rank = 0; rank < c.size(); ++rank) {
    const Said& one = said[static_cast<std::size_t>(rank)];
    expect(one.number == rank * 0.5 && one.rank == rank && one.twice == 2 * rank, "gather_values");
  }
  for (int root = 0; root < c.size(); ++root)
    for (const std::size_t length : {0U, 1U, 100U, 70000U}) {
      const auto text_of = [&](int rank) {
        return std::string(length + static_cast<std::size_t>(length > 0 ? rank : 0),
                           static_cast<char>('a' + rank));
      };
      expect(c.share_text(text_of(c.rank()), root, "text") == text_of(root), "share_text");
    }
}

}  // namespace sluice::test
