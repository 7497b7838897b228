#include "parallel/comm/backend/host_backend.h"

#include <algorithm>
#include <utility>

#include "parallel/comm/backend/ordered_reduce.h"
#include "parallel/comm/backend/phases.h"
#include "parallel/comm/backend/rounds.h"

namespace sluice {
namespace {

/// An all_reduce of fewer bytes exchanges whole arrays: one latency instead of two. An all_gather
/// of fewer bytes a rank takes rounds if there are many ranks.
constexpr std::size_t small = 16384;

/// Up to so many ranks send messages to all others at once, which takes one latency. More ranks
/// take about log2(ranks) rounds of one message: sending one to each costs more than the latencies.
constexpr int most_direct = SignatureCheck::most_direct;

/// A link moves about so many bytes in the time that a rank takes for a message. A tree moves whole
/// arrays and spares messages, so it is taken for arrays of fewer bytes than this for each rank.
constexpr std::size_t bytes_worth_a_message = 1024;

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

/// True if the parts are equally many elements, and few.
bool parts_are_small(const CollectiveCall& call) {
  const Part& first = call.parts.front();
  return bytes_of(call.data, first).size() < small &&
         std::ranges::all_of(call.parts, [&](const Part& p) { return p.count == first.count; });
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
  const std::size_t bytes = bytes_of(work.call.data).size();
  if (work.call.any_order && work.size() > most_direct &&
      bytes < std::max(small, static_cast<std::size_t>(work.size()) * bytes_worth_a_message))
    return add_all_reduce_in_rounds(work);
  if (bytes < small) {
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

/// No rank is done before all have begun. Up to most_direct ranks each send a token to all others.
void add_barrier(Phases& work) {
  if (work.size() > most_direct) return add_barrier_in_rounds(work);
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
        if (work.size() > most_direct && parts_are_small(work.call))
          add_all_gather_in_rounds(work);
        else
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

std::int64_t padded_bytes(const std::vector<Part>& parts, DType dtype) {
  return padded_count(parts) * static_cast<std::int64_t>(parts.size() * size_of(dtype));
}

std::int64_t padded_count(const std::vector<Part>& parts) {
  constexpr std::int64_t unit = 64;
  const std::int64_t largest = std::ranges::max(parts, {}, &Part::count).count;
  return (largest + unit - 1) / unit * unit;
}

std::unique_ptr<Backend> make_host_backend(std::shared_ptr<Transport> transport) {
  return std::make_unique<HostBackend>(std::move(transport));
}

std::unique_ptr<Backend> make_idle_backend() {
  return std::make_unique<IdleBackend>();
}

}  // namespace sluice
