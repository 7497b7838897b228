// Messages between ranks, groups of them, and what they tell each other.

#include "tests/parallel/battery.h"
#include "tests/parallel/checked_ranks.h"
#include "tests/support/catch.h"

namespace sluice::test::groups_test {

TEST_CASE("messages between two ranks match in order", "[threads]") {
  for (const int ranks : {2, 4, 8})
    check_ranks(ranks, check_message_order);
}

TEST_CASE("empty messages and empty lists of them are none", "[threads]") {
  check_ranks(2, [](Communicator& c) {
    std::vector<float> none, mine{static_cast<float>(c.rank())}, got(1, -1.F);
    const int peer = 1 - c.rank();
    // The empty one between must not take the place of the next.
    c.p2p({{true, peer, view_of(none)},
           {true, peer, view_of(mine)},
           {false, peer, view_of(none)},
           {false, peer, view_of(got)}},
          {.label = "with an empty one"})
        ->wait();
    expect(got[0] == static_cast<float>(peer), "the message behind an empty one");
    c.p2p({}, {.label = "nothing"})->wait();
    c.p2p({{c.rank() == 0, peer, view_of(none)}}, {.label = "only an empty one"})->wait();
  });
}

TEST_CASE("p2p of some ranks needs no others and does not count as a collective", "[threads]") {
  check_ranks(3, [](Communicator& c) {
    auto mine = numbers<float>(c.rank(), 1000, 8);
    std::vector<float> got(1000);
    if (c.rank() == 0) c.p2p({{true, 2, view_of(mine)}}, {.label = "to 2"})->wait();
    if (c.rank() == 2) {
      c.p2p({{false, 0, view_of(got)}}, {.label = "from 0"})->wait();
      expect_same(got, numbers<float>(0, 1000, 8), "a message from 0 to 2");
    }
    const Handle barrier = c.barrier("all again");  // signatures still agree, rank 1's too
    expect(barrier->signature().sequence == 0, "p2p took a place among the collectives");
    barrier->wait();
  });
}

TEST_CASE("split makes groups by colour and key", "[threads]") {
  for (const int ranks : {1, 2, 3, 4, 8})
    check_ranks(ranks, check_split);
}

TEST_CASE("ranks tell each other values and texts", "[threads]") {
  for (const int ranks : {1, 2, 3, 8})
    check_ranks(ranks, check_values);
}

TEST_CASE("a group outlives the communicator that it was split from", "[threads]") {
  check_threads(4, [](std::unique_ptr<Transport> transport) {
    const int rank = transport->rank();
    auto world = std::make_unique<Communicator>(std::move(transport), nullptr, patient());
    auto group = world->split(rank / 2, 0, {.name = "half"});
    world.reset();
    Battery<float>::all_reduce(*group, 5000);
    check_message_order(*group);
  });
}

}  // namespace sluice::test::groups_test
