#include "parallel/comm/backend/host_backend.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "parallel/comm/backend/ordered_reduce.h"

namespace sluice {
namespace {

/// An all_reduce of fewer bytes exchanges whole arrays: one latency instead of two.
constexpr std::size_t small = 16384;

std::span<std::byte> bytes_of(const View& data, const Part& part) {
  const std::size_t width = size_of(data.dtype);
  return {data.address + static_cast<std::size_t>(part.offset) * width,
          static_cast<std::size_t>(part.count) * width};
}

std::span<std::byte> bytes_of(const View& data) {
  return bytes_of(data, {0, data.size()});
}

/// An operation as a sequence of phases: each posts its messages together and does some work when
/// they are done.
class Phases final : public Work {
 public:
  struct Phase {
    std::function<void(Phases&)> post{};
    std::function<void()> then{};
    int channel = 0;  ///< must be equal at both ends of a message
  };

  Phases(Transport& transport, CollectiveCall what, int tag)
      : call(std::move(what)), transport_(transport), tag_(tag) {}

  const CollectiveCall call;
  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }

  void add(Phase phase) { phases_.push_back(std::move(phase)); }
  void send(int to, std::span<const std::byte> bytes) {
    if (!bytes.empty())
      messages_.push_back(transport_.send(to, tag_ + phases_[next_].channel, bytes));
  }
  void receive(int from, std::span<std::byte> bytes) {
    if (!bytes.empty())
      messages_.push_back(transport_.receive(from, tag_ + phases_[next_].channel, bytes));
  }
  template <class Body>
  void for_each_peer(Body&& body) const {
    // Each rank begins with a different peer, so that no rank is the first peer of all others.
    for (int i = 1; i < size(); ++i)
      body((rank() + i) % size());
  }

  std::span<std::byte> memory(std::size_t bytes) {
    memory_.resize(bytes);
    return memory_;
  }
  /// Returns an address for each rank's contribution to `count` elements; this rank's own is `own`.
  std::vector<std::byte*> places_for(std::int64_t count, std::byte* own) {
    const std::size_t each = static_cast<std::size_t>(count) * size_of(call.data.dtype);
    const std::size_t needed = each * static_cast<std::size_t>(size() - 1);
    std::byte* next = call.scratch.address;
    if (!call.scratch || static_cast<std::size_t>(call.scratch.size()) < needed)
      next = memory(needed).data();
    std::vector<std::byte*> places;
    for (int r = 0; r < size(); ++r)
      places.push_back(r == rank() ? own : std::exchange(next, next + each));
    return places;
  }

  bool advance() override {
    while (true) {
      if (!posted_) {
        if (next_ == phases_.size()) return true;
        if (phases_[next_].post) phases_[next_].post(*this);
        posted_ = true;
      }
      if (!all_done(messages_)) return false;
      if (phases_[next_].then) phases_[next_].then();
      ++next_;
      posted_ = false;
    }
  }

 private:
  Transport& transport_;
  int tag_;
  std::vector<Phase> phases_;
  std::size_t next_ = 0;
  bool posted_ = false;
  std::vector<std::byte> memory_;
  std::vector<MessagePtr> messages_;  ///< declared last: destroyed before the memory it refers to
};

/// Reduces the contributions of all ranks to `part` of the data, in place.
void reduce_here(Phases& work, const Part& part, const std::vector<std::byte*>& places) {
  const View& data = work.call.data;
  const std::vector<const std::byte*> in(places.begin(), places.end());
  ordered_reduce({bytes_of(data, part).data(), data.dtype, {part.count}}, in, work.call.op);
}

void add_reduce_scatter(Phases& work, const std::vector<Part>& parts, int channel = 0) {
  const Part mine = parts[static_cast<std::size_t>(work.rank())];
  const auto places = work.places_for(mine.count, bytes_of(work.call.data, mine).data());
  work.add({.post =
                [parts, mine, places](Phases& w) {
                  const std::size_t bytes = bytes_of(w.call.data, mine).size();
                  w.for_each_peer([&](int peer) {
                    const auto p = static_cast<std::size_t>(peer);
                    w.receive(peer, {places[p], bytes});
                    w.send(peer, bytes_of(w.call.data, parts[p]));
                  });
                },
            .then = [&work, mine, places] { reduce_here(work, mine, places); },
            .channel = channel});
}

void add_all_gather(Phases& work, const std::vector<Part>& parts) {
  work.add({.post =
                [parts](Phases& w) {
                  w.for_each_peer([&](int peer) {
                    w.receive(peer, bytes_of(w.call.data, parts[static_cast<std::size_t>(peer)]));
                    w.send(peer, bytes_of(w.call.data, parts[static_cast<std::size_t>(w.rank())]));
                  });
                },
            .channel = 1});
}

void add_all_reduce(Phases& work) {
  const std::int64_t count = work.call.data.size();
  if (bytes_of(work.call.data).size() < small) {
    const std::vector<Part> whole(static_cast<std::size_t>(work.size()), {0, count});
    // Another channel, so that if counts differ between ranks, parts and whole arrays are not mixed
    // up.
    return add_reduce_scatter(work, whole, 2);
  }
  const auto parts = even_parts(count, work.size());
  add_reduce_scatter(work, parts);
  add_all_gather(work, parts);
}

void add_reduce(Phases& work) {
  const View& data = work.call.data;
  if (work.rank() != work.call.root) {
    work.add({.post = [](Phases& w) { w.send(w.call.root, bytes_of(w.call.data)); }});
    return;
  }
  const auto places = work.places_for(data.size(), data.address);
  work.add({.post =
                [places](Phases& w) {
                  w.for_each_peer([&](int peer) {
                    w.receive(peer, {places[static_cast<std::size_t>(peer)],
                                     bytes_of(w.call.data).size()});
                  });
                },
            .then =
                [&work, places] {
                  reduce_here(work, {0, work.call.data.size()}, places);
                }});
}

/// Uses a binomial tree: in round k, ranks below 2^k (counted from the root) send to those 2^k
/// further.
void add_broadcast(Phases& work) {
  const int n = work.size();
  const int place = (work.rank() - work.call.root + n) % n;
  const auto rank_at = [root = work.call.root, n](int at) { return (at + root) % n; };
  int first_round = 1;
  while (first_round <= place)
    first_round *= 2;
  if (place > 0)
    work.add({.post = [from = rank_at(place - first_round / 2)](Phases& w) {
      w.receive(from, bytes_of(w.call.data));
    }});
  std::vector<int> children;
  for (int round = first_round; place + round < n; round *= 2)
    children.push_back(rank_at(place + round));
  if (children.empty()) return;
  work.add({.post = [children](Phases& w) {
    for (const int child : children)
      w.send(child, bytes_of(w.call.data));
  }});
}

std::span<std::byte> slot_of(const CollectiveCall& call, int rank) {
  return bytes_of(call.all, {rank * call.data.size(), call.data.size()});
}

void add_gather(Phases& work) {
  if (work.rank() != work.call.root) {
    work.add({.post = [](Phases& w) { w.send(w.call.root, bytes_of(w.call.data)); }});
    return;
  }
  work.add({.post =
                [](Phases& w) {
                  w.for_each_peer([&](int peer) { w.receive(peer, slot_of(w.call, peer)); });
                },
            .then =
                [&work] {
                  std::ranges::copy(bytes_of(work.call.data),
                                    slot_of(work.call, work.rank()).begin());
                }});
}

void add_scatter(Phases& work) {
  if (work.rank() != work.call.root) {
    work.add({.post = [](Phases& w) { w.receive(w.call.root, bytes_of(w.call.data)); }});
    return;
  }
  work.add({.post =
                [](Phases& w) {
                  w.for_each_peer([&](int peer) { w.send(peer, slot_of(w.call, peer)); });
                },
            .then =
                [&work] {
                  std::ranges::copy(slot_of(work.call, work.rank()),
                                    bytes_of(work.call.data).begin());
                }});
}

/// Every rank sends a token to every other rank, so that none is done before all have begun.
void add_barrier(Phases& work) {
  work.add({.post = [](Phases& w) {
    const auto token = w.memory(static_cast<std::size_t>(w.size()));
    w.for_each_peer([&](int peer) {
      w.receive(peer, token.subspan(static_cast<std::size_t>(peer), 1));
      w.send(peer, token.subspan(static_cast<std::size_t>(w.rank()), 1));
    });
  }});
}

void add_p2p(Phases& work) {
  work.add({.post = [](Phases& w) {
    for (const Transfer& transfer : w.call.transfers)
      transfer.send ? w.send(transfer.peer, bytes_of(transfer.data))
                    : w.receive(transfer.peer, bytes_of(transfer.data));
  }});
}

class HostBackend final : public Backend {
 public:
  explicit HostBackend(std::shared_ptr<Transport> transport) : transport_(std::move(transport)) {}

  std::string_view name() const override { return transport_->name(); }
  std::unique_ptr<Work> start(const CollectiveCall& call, int tag) override {
    auto work = std::make_unique<Phases>(*transport_, call, tag);
    build(*work);
    work->advance();
    return work;
  }

 private:
  static void build(Phases& work) {
    const bool alone = work.size() == 1;
    switch (work.call.kind) {
      case Collective::all_reduce:
        if (!alone) add_all_reduce(work);
        break;
      case Collective::reduce:
        if (!alone) add_reduce(work);
        break;
      case Collective::broadcast:
        if (!alone) add_broadcast(work);
        break;
      case Collective::all_gather:
        add_all_gather(work, work.call.parts);
        break;
      case Collective::gather:
        add_gather(work);
        break;
      case Collective::scatter:
        add_scatter(work);
        break;
      case Collective::reduce_scatter:
        if (!alone) add_reduce_scatter(work, work.call.parts);
        break;
      case Collective::barrier:
      case Collective::split:
        add_barrier(work);
        break;
      case Collective::p2p:
        add_p2p(work);
        break;
    }
  }

  std::shared_ptr<Transport> transport_;
};

class NoWork final : public Work {
 public:
  bool advance() override { return true; }
};

class IdleBackend final : public Backend {
 public:
  std::string_view name() const override { return "none"; }
  std::unique_ptr<Work> start(const CollectiveCall&, int) override {
    return std::make_unique<NoWork>();
  }
};

}  // namespace

std::vector<Part> even_parts(std::int64_t count, int pieces, std::int64_t unit) {
  const std::int64_t units = (count + unit - 1) / unit;
  std::vector<Part> parts;
  for (int i = 0; i < pieces; ++i) {
    const std::int64_t begin = std::min(count, units * i / pieces * unit);
    const std::int64_t end = std::min(count, units * (i + 1) / pieces * unit);
    parts.push_back({begin, end - begin});
  }
  return parts;
}

std::vector<Part> equal_parts(std::int64_t each, int ranks) {
  std::vector<Part> parts;
  for (int rank = 0; rank < ranks; ++rank)
    parts.push_back({rank * each, each});
  return parts;
}

std::int64_t scratch_bytes(const std::vector<Part>& parts, DType dtype) {
  const std::int64_t largest = std::ranges::max(parts, {}, &Part::count).count;
  return largest * static_cast<std::int64_t>((parts.size() - 1) * size_of(dtype));
}

std::unique_ptr<Backend> make_host_backend(std::shared_ptr<Transport> transport) {
  return std::make_unique<HostBackend>(std::move(transport));
}

std::unique_ptr<Backend> make_idle_backend() {
  return std::make_unique<IdleBackend>();
}

}  // namespace sluice
