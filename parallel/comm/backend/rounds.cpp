#include "parallel/comm/backend/rounds.h"

#include <algorithm>
#include <array>

#include "parallel/comm/backend/ordered_reduce.h"

namespace sluice {

void add_all_gather_in_rounds(Phases& work) {
  const int n = work.size();
  // The parts by distance: that of rank r is at (r - rank) mod n.
  const auto part_of = [&work, n](int distance) {
    const auto of = static_cast<std::size_t>((work.rank() + distance) % n);
    return bytes_of(work.call.data, work.call.parts[of]);
  };
  const std::size_t each = part_of(0).size();
  const auto held = work.memory(each * static_cast<std::size_t>(n));
  work.add({.then = [=] { std::ranges::copy(part_of(0), held.begin()); }});
  // Before the round of distance d, a rank holds the parts of the distances below d.
  for (int distance = 1; distance < n; distance *= 2)
    work.add({.post = [=](Phases& w) {
      const auto bytes = each * static_cast<std::size_t>(std::min(distance, n - distance));
      w.receive((w.rank() + distance) % n,
                held.subspan(each * static_cast<std::size_t>(distance), bytes));
      w.send((w.rank() - distance + n) % n, held.first(bytes));
    }});
  work.add({.then = [=] {
    for (int distance = 1; distance < n; ++distance)
      std::ranges::copy(held.subspan(each * static_cast<std::size_t>(distance), each),
                        part_of(distance).begin());
  }});
}

void add_all_reduce_in_rounds(Phases& work) {
  const int rank = work.rank();
  const std::vector<int> children = tree_children(rank, work.size());
  const auto data = bytes_of(work.call.data);
  const auto other = work.memory(data.size());
  for (const int child : children)
    work.add({.post = [=](Phases& w) { w.receive(child, other); },
              .then =
                  [&work, data, other] {
                    const std::array<const std::byte*, 2> both{data.data(), other.data()};
                    ordered_reduce(work.call.data, both, work.call.op);
                  }});
  if (rank > 0) {
    const int parent = tree_parent(rank);
    work.add({.post = [=](Phases& w) { w.send(parent, data); }});
    work.add({.post = [=](Phases& w) { w.receive(parent, data); }});
  }
  work.add({.post = [=](Phases& w) {
    for (const int child : children)
      w.send(child, data);
  }});
}

void add_barrier_in_rounds(Phases& work) {
  const int n = work.size();
  for (int distance = 1; distance < n; distance *= 2)
    work.add({.post = [distance, n](Phases& w) {
      const auto tokens = w.memory(2);
      w.receive((w.rank() - distance + n) % n, tokens.first(1));
      w.send((w.rank() + distance) % n, tokens.last(1));
    }});
}

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

}  // namespace sluice
