#include "tests/parallel/battery.h"

#include "tests/parallel/ranks.h"

namespace sluice::test {
namespace {

/// Memory for a reduction with a border behind it that must stay as it is.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : bytes_(bytes), memory_(bytes + border, mark) {}
  View view() {
    return {reinterpret_cast<std::byte*>(memory_.data()),
            DType::u8,
            {static_cast<std::int64_t>(bytes_)}};
  }
  bool untouched() const {
    return std::ranges::all_of(memory_, [](std::uint8_t byte) { return byte == mark; });
  }
  void expect_border() const {
    for (std::size_t i = bytes_; i < memory_.size(); ++i)
      expect(memory_[i] == mark, "a reduction wrote behind its scratch memory");
  }

 private:
  static constexpr std::size_t border = 256;
  static constexpr std::uint8_t mark = 0xA5;
  std::size_t bytes_;
  std::vector<std::uint8_t> memory_;
};

/// Runs a reduction with scratch memory of several sizes; `run` gets the options.
template <class Run>
void with_scratch(const Communicator& c, std::size_t enough, const Run& run) {
  run(CallOptions{.label = "no scratch"});
  Scratch little(enough > 4 ? 3 : 0);
  run(CallOptions{.label = "little scratch", .scratch = little.view()});
  expect(little.untouched(), "scratch memory that is too small was used");
  Scratch full(enough);
  run(CallOptions{.label = "scratch", .scratch = full.view()});
  full.expect_border();
  if (c.size() > 1 && enough > 0)
    expect(!full.untouched(), "scratch memory was given and other memory used");
}

std::size_t others(const Communicator& c) {
  return static_cast<std::size_t>(c.size() - 1);
}

/// Copies the elements that `part` names from `from` to `to`.
template <class T>
void take(std::vector<T>& to, const std::vector<T>& from, const Part& part) {
  const auto at = static_cast<std::ptrdiff_t>(part.offset);
  std::copy_n(from.begin() + at, part.count, to.begin() + at);
}

std::vector<std::vector<Part>> ways_to_part(std::size_t count, int ranks) {
  const auto total = static_cast<std::int64_t>(count);
  std::vector<Part> last(static_cast<std::size_t>(ranks));
  last.back() = {0, total};
  return {even_parts(total, ranks), even_parts(total, ranks, 1), uneven_parts(count, ranks), last};
}

}  // namespace

template <class T>
void Battery<T>::all_reduce(Communicator& c, std::size_t count) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::maximum}) {
    const auto wanted = reduced<T>(c.size(), count, 1, op);
    with_scratch(c, others(c) * count * sizeof(T), [&](CallOptions options) {
      options.op = op;
      auto data = numbers<T>(c.rank(), count, 1);
      c.all_reduce(view_of(data), options)->wait();
      expect_same(data, wanted, "all_reduce");
    });
  }
}

template <class T>
void Battery<T>::reduce(Communicator& c, std::size_t count) {
  for (int root = 0; root < c.size(); ++root) {
    const auto salt = static_cast<std::uint64_t>(10 + root);
    const ReduceOp op = root % 2 == 0 ? ReduceOp::sum : ReduceOp::maximum;
    const auto mine = numbers<T>(c.rank(), count, salt);
    const auto wanted = root == c.rank() ? reduced<T>(c.size(), count, salt, op) : mine;
    const auto run = [&](CallOptions options) {
      options.op = op;
      auto data = mine;
      c.reduce(view_of(data), root, options)->wait();
      expect_same(data, wanted, "reduce");
    };
    run({.label = "no scratch"});
    Scratch scratch(others(c) * count * sizeof(T));
    run({.label = "scratch", .scratch = scratch.view()});
    scratch.expect_border();
  }
}

template <class T>
void Battery<T>::reduce_scatter(Communicator& c, std::size_t count) {
  std::uint64_t salt = 30;
  for (const auto& parts : ways_to_part(count, c.size())) {
    const Part mine = parts[static_cast<std::size_t>(c.rank())];
    const auto sums = reduced<T>(c.size(), count, ++salt);
    auto wanted = numbers<T>(c.rank(), count, salt);
    take(wanted, sums, mine);
    with_scratch(c, others(c) * static_cast<std::size_t>(mine.count) * sizeof(T),
                 [&](const CallOptions& options) {
                   auto data = numbers<T>(c.rank(), count, salt);
                   c.reduce_scatter(view_of(data), parts, options)->wait();
                   expect_same(data, wanted, "reduce_scatter");
                 });
  }
}

template <class T>
void Battery<T>::all_gather(Communicator& c, std::size_t count) {
  for (const auto& parts : ways_to_part(count, c.size())) {
    auto data = numbers<T>(c.rank(), count, 40);
    auto wanted = data;  // what is in no part stays
    for (int rank = 0; rank < c.size(); ++rank)
      take(wanted, numbers<T>(rank, count, 40), parts[static_cast<std::size_t>(rank)]);
    c.all_gather(view_of(data), parts, {.label = "gather"})->wait();
    expect_same(data, wanted, "all_gather");
  }
}

template <class T>
void Battery<T>::broadcast(Communicator& c, std::size_t count) {
  for (int root = 0; root < c.size(); ++root) {
    auto data = numbers<T>(c.rank(), count, 50);
    c.broadcast(view_of(data), root, {.label = "from the root"})->wait();
    expect_same(data, numbers<T>(root, count, 50), "broadcast");
  }
}

template <class T>
void Battery<T>::gather(Communicator& c, std::size_t count) {
  std::vector<T> wanted;
  for (int rank = 0; rank < c.size(); ++rank) {
    const auto values = numbers<T>(rank, count, 60);
    wanted.insert(wanted.end(), values.begin(), values.end());
  }
  for (int root = 0; root < c.size(); ++root) {
    const bool here = root == c.rank();
    const auto mine = numbers<T>(c.rank(), count, 60);
    auto data = mine;
    std::vector<T> all(here ? wanted.size() : 0);
    c.gather(view_of(data), here ? view_of(all) : View{}, root, {.label = "gather"})->wait();
    expect_same(data, mine, "a rank's own data of a gather");
    if (here) expect_same(all, wanted, "gather");
  }
}

template <class T>
void Battery<T>::scatter(Communicator& c, std::size_t count) {
  const auto ranks = static_cast<std::size_t>(c.size());
  for (int root = 0; root < c.size(); ++root) {
    const bool here = root == c.rank();
    const auto source = numbers<T>(root, count * ranks, 70);
    auto all = here ? source : std::vector<T>();
    auto data = numbers<T>(c.rank(), count, 71);
    c.scatter(here ? view_of(all) : View{}, view_of(data), root, {.label = "scatter"})->wait();
    const auto begin = source.begin() + static_cast<std::ptrdiff_t>(count) * c.rank();
    expect_same(data, std::vector<T>(begin, begin + static_cast<std::ptrdiff_t>(count)), "scatter");
    if (here) expect_same(all, source, "the root's data of a scatter");
  }
}

template <class T>
void Battery<T>::ring_shift(Communicator& c, std::size_t count) {
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  auto mine = numbers<T>(c.rank(), count, 80);
  std::vector<T> got(count);
  c.p2p({{true, next, view_of(mine)}, {false, previous, view_of(got)}}, {.label = "ring"})->wait();
  expect_same(got, numbers<T>(previous, count, 80), "a ring shift");
}

template <class T>
void Battery<T>::all_exchange(Communicator& c, std::size_t count) {
  const auto length = [&](int from, int to) {
    return (from + 2 * to) % 3 == 0 ? 0 : count / static_cast<std::size_t>(1 + from + to);
  };
  const auto salt = [](int to) { return static_cast<std::uint64_t>(90 + to); };
  std::vector<std::vector<T>> out, in;
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < c.size(); ++peer) {
    out.push_back(numbers<T>(c.rank(), length(c.rank(), peer), salt(peer)));
    in.emplace_back(length(peer, c.rank()));
  }
  // All sends first: a transport that waited in one of them would never come to a receive.
  for (int peer = 0; peer < c.size(); ++peer)
    transfers.push_back({true, peer, view_of(out[static_cast<std::size_t>(peer)])});
  for (int peer = 0; peer < c.size(); ++peer)
    transfers.push_back({false, peer, view_of(in[static_cast<std::size_t>(peer)])});
  c.p2p(std::move(transfers), {.label = "all with all"})->wait();
  for (int peer = 0; peer < c.size(); ++peer)
    expect_same(in[static_cast<std::size_t>(peer)],
                numbers<T>(peer, length(peer, c.rank()), salt(c.rank())), "an exchange of all");
}

template struct Battery<double>;
template struct Battery<float>;
template struct Battery<BFloat16>;
template struct Battery<Half>;
template struct Battery<std::int32_t>;

// These checks need several operations under way at a time.

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
