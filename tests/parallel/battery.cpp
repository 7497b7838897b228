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
void check_all_reduce(Communicator& c, std::size_t count) {
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
void check_reduce(Communicator& c, std::size_t count) {
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
void check_reduce_scatter(Communicator& c, std::size_t count) {
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
void check_all_gather(Communicator& c, std::size_t count) {
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
void check_broadcast(Communicator& c, std::size_t count) {
  for (int root = 0; root < c.size(); ++root) {
    auto data = numbers<T>(c.rank(), count, 50);
    c.broadcast(view_of(data), root, {.label = "from the root"})->wait();
    expect_same(data, numbers<T>(root, count, 50), "broadcast");
  }
}

template <class T>
void check_gather(Communicator& c, std::size_t count) {
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
void check_scatter(Communicator& c, std::size_t count) {
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
void check_ring_shift(Communicator& c, std::size_t count) {
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  auto mine = numbers<T>(c.rank(), count, 80);
  std::vector<T> got(count);
  c.p2p({{true, next, view_of(mine)}, {false, previous, view_of(got)}}, {.label = "ring"})->wait();
  expect_same(got, numbers<T>(previous, count, 80), "a ring shift");
}

template <class T>
void check_all_exchange(Communicator& c, std::size_t count) {
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

#define SLUICE_FOR_TYPE(T)                                           \
  template void check_all_reduce<T>(Communicator&, std::size_t);     \
  template void check_reduce<T>(Communicator&, std::size_t);         \
  template void check_reduce_scatter<T>(Communicator&, std::size_t); \
  template void check_all_gather<T>(Communicator&, std::size_t);     \
  template void check_broadcast<T>(Communicator&, std::size_t);      \
  template void check_gather<T>(Communicator&, std::size_t);         \
  template void check_scatter<T>(Communicator&, std::size_t);        \
  template void check_ring_shift<T>(Communicator&, std::size_t);     \
  template void check_all_exchange<T>(Communicator&, std::size_t);

SLUICE_FOR_TYPE(double)
SLUICE_FOR_TYPE(float)
SLUICE_FOR_TYPE(BFloat16)
SLUICE_FOR_TYPE(Half)
SLUICE_FOR_TYPE(std::int32_t)
#undef SLUICE_FOR_TYPE

}  // namespace sluice::test
